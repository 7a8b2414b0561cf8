package redis

import (
	"context"
	"errors"
	"slices"

	"github.com/redis/rueidis"
)

const (
	// chunk is how many buckets are asked in one round trip.
	chunk = 128
	// page is how many entries of a bucket are asked for at most.
	page = 256
)

// entry is one of an index.
type entry struct {
	in    *bucket
	key   string
	score float64
}

// walk goes through an index of some buckets, a page of each at a time, however many entries a bucket has. Up to a
// score it goes by score. Without one it scans: new entries have the highest scores, and who goes by score through all
// would follow them for as long as they come.
type walk struct {
	index int
	until string // the highest score, or empty
	left  []*bucket
	at    map[*bucket]position
}

// position is how far a bucket was read: up to a score, behind so many entries that have just that score, or up to the
// cursor of a scan.
type position struct {
	score  float64
	behind int64
	last   string // of these
	cursor uint64
}

func newWalk(among []bucket, index int, until string) *walk {
	w := &walk{index: index, until: until, at: make(map[*bucket]position)}
	for i := range among {
		w.left = append(w.left, &among[i])
	}
	return w
}

// next returns the next entries of all buckets that may have some. What cannot be asked for is left out, and an error
// is returned beside the rest.
func (s *Store) next(ctx context.Context, w *walk, limit int) (found []entry, err error) {
	read, commands := w.byScore, make([]rueidis.Completed, len(w.left))
	if w.until == "" {
		read = w.scanned
	}
	for i, in := range w.left {
		commands[i] = w.command(s.sender.client.B(), in, int64(limit))
	}
	var left []*bucket
	var errs []error
	for i, reply := range s.askPrimary(ctx, s.sender.client, commands...) {
		some, more, err := read(w.left[i], reply, limit)
		if err != nil {
			errs = append(errs, unavailable(err))
			continue
		}
		found = append(found, some...)
		if more {
			left = append(left, w.left[i])
		}
	}
	w.left = left
	return found, errors.Join(errs...)
}

// command asks for the next entries of a bucket. By score it asks for the last one that was passed as well.
func (w *walk) command(b rueidis.Builder, in *bucket, limit int64) rueidis.Completed {
	at, least := w.at[in], "-inf"
	if w.until == "" {
		return b.Zscan().Key(in.index[w.index]).Cursor(at.cursor).Count(limit).Build()
	}
	if at.last != "" {
		least = number(int64(at.score))
	}
	overlap := min(at.behind, 1)
	return b.Zrangebyscore().Key(in.index[w.index]).Min(least).Max(w.until).Withscores().
		Limit(at.behind-overlap, limit+overlap).Build()
}

// scanned reads the entries that a scan has found.
func (w *walk) scanned(in *bucket, reply rueidis.RedisResult, _ int) (found []entry, more bool, err error) {
	step, err := reply.AsScanEntry()
	for pair := range slices.Chunk(step.Elements, 2) {
		found = append(found, entry{in: in, key: pair[0]})
	}
	w.at[in] = position{cursor: step.Cursor}
	return found, step.Cursor != 0, err
}

// byScore reads entries in the order of their scores. Where the last one that was passed is not in its place, entries
// of its score have come or gone, and some would be left out: all of that score are read again.
func (w *walk) byScore(in *bucket, reply rueidis.RedisResult, limit int) (found []entry, more bool, err error) {
	scores, err := reply.AsZScores()
	if err != nil {
		return nil, false, err
	}
	if at := w.at[in]; at.behind > 0 {
		if len(scores) == 0 || scores[0].Member != at.last {
			w.at[in] = position{score: at.score, last: at.last}
			return nil, true, nil
		}
		scores = scores[1:]
	}
	for _, e := range scores {
		found = append(found, entry{in, e.Member, e.Score})
	}
	return found, len(found) == limit, nil
}

// pass goes on behind an entry that stays in its index. A scan goes on by itself.
func (w *walk) pass(e entry) {
	if w.until == "" {
		return
	}
	at := w.at[e.in]
	if at.behind == 0 || at.score != e.score {
		at = position{score: e.score}
	}
	at.behind++
	at.last = e.key
	w.at[e.in] = at
}
