package redis

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/redis/rueidis"
)

// This file keeps programs apart that would not find each other's records. Up to format 1 a record was named by its ID,
// and is named by the hash of its ID since: on one server, a program of before and one of today would each execute what
// the other has. So the first program of today puts a set in the place where one of before keeps its index of what is
// in progress, a sorted set. Without that it makes no record: each reservation fails. What is in the set says of which
// format the records are.

// The names of before.
const (
	oldKindRecord = "r"
	kindFormat    = "p" // of old the index of what is in progress
)

// formatMark is the member of the set that says that records are of this format; it begins as all of them do.
var formatMark = fmt.Sprintf("%s%d", formatMarks, format)

const formatMarks = "format "

// errOldRecords refuses a server that a program of before still uses, or has used of late.
var errOldRecords = errors.New("redis: the server holds records of an earlier version of this program, which this " +
	"one would not find, and execute again: stop the programs of that version and wait until their records have " +
	"expired, or use another prefix (WithPrefix), under which nothing is known of the operations of before")

// checkFormat makes sure that the records are of the format that this program knows and, unless it only looks, that no
// program of before can make others. It writes when a prefix is used for the first time; then it looks through all
// keys, too.
func (s *Store) checkFormat(ctx context.Context, readOnly bool) error {
	known, err := s.formatKnown(ctx)
	if err != nil || known {
		return err
	}
	if err := s.refuseOldRecords(ctx); err != nil || readOnly { // before anyone is kept out
		return err
	}
	return s.claimFormat(ctx)
}

// claimFormat keeps programs of before from making records.
func (s *Store) claimFormat(ctx context.Context) error {
	// Each program that claims has a member of its own: what one takes back does not undo what another one did.
	token := "claim " + rand.Text()
	if err := s.markAll(ctx, func(b rueidis.Builder, key string) rueidis.Completed {
		return b.Sadd().Key(key).Member(token).Build()
	}); err != nil {
		return errors.Join(err, s.takeBack(ctx, token))
	}
	// From here on no program of before makes a record: those that were made until now are seen.
	if err := s.refuseOldRecords(ctx); err != nil {
		return errors.Join(err, s.takeBack(ctx, token))
	}
	return s.markAll(ctx, func(b rueidis.Builder, key string) rueidis.Completed {
		return b.Sadd().Key(key).Member(formatMark).Build()
	})
}

// formatKnown reports whether the records are of the format that this program knows, and refuses those of another. In a
// cluster each bucket says so, and those that cannot be asked need not.
func (s *Store) formatKnown(ctx context.Context) (known bool, err error) {
	client := s.sender.client
	var commands []rueidis.Completed
	for _, in := range s.names.holding(indexOpen) {
		commands = append(commands, client.B().Smembers().Key(in.base+kindFormat).Build())
	}
	var failed error
	for _, reply := range s.sender.ask(ctx, client, commands...) {
		members, err := reply.AsStrSlice()
		switch {
		case isWrongType(err):
			return false, errOldRecords
		case err != nil:
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

// markAll sends a command about the set of each bucket that has one.
func (s *Store) markAll(ctx context.Context, command func(b rueidis.Builder, key string) rueidis.Completed) error {
	client := s.sender.client
	var commands []rueidis.Completed
	for _, in := range s.names.holding(indexOpen) {
		commands = append(commands, command(client.B(), in.base+kindFormat))
	}
	for _, reply := range s.sender.ask(ctx, client, commands...) {
		switch err := reply.Error(); {
		case isWrongType(err):
			return errOldRecords
		case err != nil:
			return unavailable(err)
		}
	}
	return nil
}

// takeBack lets programs of before go on: this one does not open.
func (s *Store) takeBack(ctx context.Context, token string) error {
	ctx = context.WithoutCancel(ctx) // which still is bounded, as every call is
	client := s.sender.client
	var commands []rueidis.Completed
	for _, in := range s.names.holding(indexOpen) {
		commands = append(commands, client.B().Srem().Key(in.base+kindFormat).Member(token).Build())
	}
	var failed error
	for _, reply := range s.sender.ask(ctx, client, commands...) {
		if err := reply.Error(); err != nil && !isWrongType(err) {
			failed = unavailable(err)
		}
	}
	return failed
}

// refuseOldRecords looks for a record under a name of before, again where the servers changed meanwhile: one that gets
// its first replica is such a case, and a store that opens does not fail for it.
func (s *Store) refuseOldRecords(ctx context.Context) (err error) {
	const tries = 5
	for range tries {
		err = s.scanKeys(ctx, oldKindRecord, func(keys []string) error {
			if len(keys) > 0 {
				return errOldRecords
			}
			return nil
		})
		if !errors.Is(err, errDisturbed) {
			break
		}
	}
	return err
}

// isWrongType reports whether something else is stored at a key than the command is for.
func isWrongType(err error) bool {
	said, ok := rueidis.IsRedisErr(err)
	return ok && strings.HasPrefix(said.Error(), "WRONGTYPE")
}
