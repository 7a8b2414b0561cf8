package redis

import (
	"context"
	"errors"

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

// walk goes through an index of some buckets by score, a page of each at a time, however many entries a bucket has.
type walk struct {
	index int
	until string // the highest score
	left  []*bucket
	at    map[*bucket]position
}

// position is how far a bucket was read: up to a score, behind so many entries that have just that score.
type position struct {
	score  float64
	behind int64
}

func newWalk(among []bucket, index int, until string) *walk {
	w := &walk{index: index, until: until, at: make(map[*bucket]position)}
	for i := range among {
		w.left = append(w.left, &among[i])
	}
	return w
}

// next returns the next entries of all buckets that may have some. What cannot be asked for is left out, and an error is
// returned beside the rest.
func (s *Store) next(ctx context.Context, w *walk, limit int) (found []entry, err error) {
	b := s.sender.client.B()
	commands := make([]rueidis.Completed, len(w.left))
	for i, in := range w.left {
		least, at := "-inf", w.at[in]
		if at.behind > 0 {
			least = number(int64(at.score))
		}
		commands[i] = b.Zrangebyscore().Key(in.index[w.index]).Min(least).Max(w.until).Withscores().
			Limit(at.behind, int64(limit)).Build()
	}
	var left []*bucket
	var errs []error
	for i, reply := range s.sender.ask(ctx, s.sender.client, commands...) {
		scores, err := reply.AsZScores()
		if err != nil {
			errs = append(errs, unavailable(err))
			continue
		}
		for _, e := range scores {
			found = append(found, entry{w.left[i], e.Member, e.Score})
		}
		if len(scores) == limit {
			left = append(left, w.left[i])
		}
	}
	w.left = left
	return found, errors.Join(errs...)
}

// pass goes on behind an entry that stays in its index.
func (w *walk) pass(e entry) {
	at := w.at[e.in]
	if at.behind == 0 || at.score != e.score {
		at = position{score: e.score}
	}
	at.behind++
	w.at[e.in] = at
}
