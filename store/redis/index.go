package redis

import (
	"context"
	"errors"
	"slices"

	"github.com/redis/rueidis"
)

const (
	// chunk is how many buckets are queried in one round trip.
	chunk = 128
	// page is the largest number of entries that are read from a bucket at once.
	page = 256
)

// entry is an entry of an index.
type entry struct {
	in    *bucket
	key   string
	score float64
}

// walk reads an index of some buckets, one page of each at a time, however many entries a bucket has. With a highest
// score it reads in the order of scores. Without one it scans: new entries have the highest scores, and reading all
// entries in the order of scores would not end while entries are added.
type walk struct {
	index int
	until string // the highest score, or empty
	left  []*bucket
	at    map[*bucket]position
}

// position is how far a bucket was read: up to a score, after so many entries with exactly that score, or up to the
// cursor of a scan.
type position struct {
	score  float64
	passed int64
	last   string // the last entry with that score
	cursor uint64
}

func newWalk(among []bucket, index int, until string) *walk {
	w := &walk{index: index, until: until, at: make(map[*bucket]position)}
	for i := range among {
		w.left = append(w.left, &among[i])
	}
	return w
}

// next returns the next entries of all buckets that may have some. Unreachable buckets are left out, and an error is
// returned with the rest.
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

// command returns the command for the next entries of a bucket. By score it also reads the last entry that was passed.
func (w *walk) command(b rueidis.Builder, in *bucket, limit int64) rueidis.Completed {
	at, least := w.at[in], "-inf"
	if w.until == "" {
		return b.Zscan().Key(in.index[w.index]).Cursor(at.cursor).Count(limit).Build()
	}
	if at.last != "" {
		least = number(int64(at.score))
	}
	overlap := min(at.passed, 1)
	return b.Zrangebyscore().Key(in.index[w.index]).Min(least).Max(w.until).Withscores().
		Limit(at.passed-overlap, limit+overlap).Build()
}

// scanned returns the entries that a scan has found.
func (w *walk) scanned(in *bucket, reply rueidis.RedisResult, _ int) (found []entry, more bool, err error) {
	step, err := reply.AsScanEntry()
	for pair := range slices.Chunk(step.Elements, 2) {
		found = append(found, entry{in: in, key: pair[0]})
	}
	w.at[in] = position{cursor: step.Cursor}
	return found, step.Cursor != 0, err
}

// byScore returns entries in the order of their scores. If the last passed entry is not in its place, entries with its
// score were added or removed, and some would be left out: all entries with that score are read again.
func (w *walk) byScore(in *bucket, reply rueidis.RedisResult, limit int) (found []entry, more bool, err error) {
	scores, err := reply.AsZScores()
	if err != nil {
		return nil, false, err
	}
	if at := w.at[in]; at.passed > 0 {
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

// pass continues after an entry that stays in its index. A scan needs no position.
func (w *walk) pass(e entry) {
	if w.until == "" {
		return
	}
	at := w.at[e.in]
	if at.passed == 0 || at.score != e.score {
		at = position{score: e.score}
	}
	at.passed++
	at.last = e.key
	w.at[e.in] = at
}
