package redis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/redis/rueidis"
)

// kindFormat is the set that names the format of the records, in each bucket with an index of records in progress.
const kindFormat = "p"

// formatMark is the member of that set for this program's format. All marks begin in the same way.
var formatMark = fmt.Sprintf("%s%d", formatMarks, format)

const formatMarks = "format "

// checkFormat refuses records of a format that this program does not know: it would not find them, and execute their
// operations again. It writes the mark when a prefix is used for the first time, and then reads once more: if two
// programs with different formats begin at the same time, at most one opens.
func (s *Store) checkFormat(ctx context.Context, readOnly bool) error {
	known, err := s.formatKnown(ctx)
	if err != nil || known || readOnly {
		return err
	}
	client := s.sender.client
	var commands []rueidis.Completed
	for _, in := range s.names.holding(indexOpen) {
		commands = append(commands, client.B().Sadd().Key(in.base+kindFormat).Member(formatMark).Build())
	}
	var failed error
	for _, reply := range s.sender.ask(ctx, client, commands...) {
		failed = errors.Join(failed, reply.Error())
	}
	if failed != nil {
		return unavailable(failed)
	}
	_, err = s.formatKnown(ctx)
	return err
}

// formatKnown reports whether the records have this program's format, and refuses records of another format. In a
// cluster each bucket contains the mark, and one reachable bucket is enough.
func (s *Store) formatKnown(ctx context.Context) (known bool, err error) {
	client := s.sender.client
	var commands []rueidis.Completed
	for _, in := range s.names.holding(indexOpen) {
		commands = append(commands, client.B().Smembers().Key(in.base+kindFormat).Build())
	}
	var failed error
	for _, reply := range s.sender.ask(ctx, client, commands...) {
		members, err := reply.AsStrSlice()
		if err != nil {
			failed = unavailable(err)
		}
		for _, member := range members {
			if strings.HasPrefix(member, formatMarks) && member != formatMark {
				return false, fmt.Errorf("redis: the records are of %s, and this program knows %s: use a newer program, "+
					"or another prefix (WithPrefix)", member, formatMark)
			}
		}
		known = known || slices.Contains(members, formatMark)
	}
	if known {
		return true, nil
	}
	return false, failed
}
