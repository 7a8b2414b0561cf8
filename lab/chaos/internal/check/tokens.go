package check

import (
	"cmp"
	"slices"
	"sort"

	"github.com/onceward/onceward/lab/chaos/internal/history"
)

// checkTokens is I6: tokens grow, none is granted twice, and nothing is accepted from an owner that was replaced.
func checkTokens(o *operation, f *findings) {
	granted := grants(o)
	if len(granted) == 0 {
		return
	}
	seen := make(map[int64]*history.Write, len(granted))
	for _, g := range granted {
		if other, twice := seen[g.Attempt]; twice && !repeatsReservation(other, g) && !learned(other, g) {
			f.add("I6", o, "token %d was granted twice: to %s (call %d) and to %s (call %d)",
				g.Attempt, other.Node, other.Seq, g.Node, g.Seq)
		}
		seen[g.Attempt] = g
	}
	l := newLadder(granted)
	for _, g := range granted {
		if highest, ok := l.before(g.Began); ok && g.Attempt < highest {
			f.add("I6", o, "token %d was granted to %s (call %d) after token %d", g.Attempt, g.Node, g.Seq, highest)
		}
	}
	for _, w := range o.writes {
		highest, ok := l.before(w.Began)
		if ok && w.Accepted && ownerCall(w) && w.Attempt < highest && !repeatsSettlement(w, o.record) {
			f.add("I6", o, "%s by %s (call %d) with token %d was accepted after token %d had been granted",
				w.Call, w.Node, w.Seq, w.Attempt, highest)
		}
	}
}

// checkLeases is I6 for the time in which a right lasts: while a lease lasts by the store's word, no other attempt is
// granted the same key, unless its owner has let go of it. Where the store's clock was set in between, no observer can
// tell.
func checkLeases(o *operation, steps []history.Step, f *findings) {
	granted := grants(o)
	if len(granted) < 2 || o.busted {
		return
	}
	for _, held := range o.writes {
		holds := held.Call == history.CallExtend || held.Call == history.CallReserve && held.Granted
		if !holds || held.Ended == 0 || !held.Accepted {
			continue
		}
		began := leaseBegan(o, held)
		for _, g := range granted {
			during := g.Began > held.Ended && g.Ended < began+held.Lease && g.Attempt != held.Attempt
			span := &history.Write{Began: began, Ended: g.Ended}
			if during && !stepped(span, steps) && !letGo(o, held, g.Ended) {
				f.add("I6", o, "token %d was granted to %s (call %d) while %s held token %d (call %d) by a lease",
					g.Attempt, g.Node, g.Seq, held.Node, held.Attempt, held.Seq)
				return
			}
		}
	}
}

// leaseBegan is the earliest time from which a lease may count. A reservation that is repeated because its reply was
// lost finds its own record (S9), with what is left of the lease.
func leaseBegan(o *operation, held *history.Write) int64 {
	began := held.Began
	for _, w := range o.writes {
		if held.Call == history.CallReserve && w.Call == history.CallReserve && repeatsReservation(w, held) {
			began = min(began, w.Began)
		}
	}
	return began
}

// letGo reports whether an owner may have let go of its right before the time, or have asked for another lease: one
// that is suspended asks for a shorter one.
func letGo(o *operation, held *history.Write, time int64) bool {
	return slices.ContainsFunc(o.writes, func(w *history.Write) bool {
		if w.Attempt != held.Attempt || w.Began >= time {
			return false
		}
		switch w.Call {
		case history.CallComplete, history.CallRelease, history.CallAbandon, history.CallReject:
			return true
		case history.CallExtend:
			return w.Began > held.Began
		default:
			return false
		}
	})
}

// repeatsReservation reports whether two grants are one reservation whose answer was lost or given up (S9).
func repeatsReservation(first, second *history.Write) bool {
	return first.Nonce != "" && first.Nonce == second.Nonce && first.Node == second.Node
}

// learned reports whether of two transactions at one time, of two reservations, one may have learned, when its commit
// got no answer, that the other had stored the very answer that it had made itself: then the record of the other is its
// own.
func learned(first, second *history.Write) bool {
	return first.Call == history.CallTransact && second.Call == history.CallTransact &&
		first.Digest != "" && first.Digest == second.Digest && first.Nonce != second.Nonce &&
		first.Began < second.Ended && second.Began < first.Ended
}

// grants returns the calls by which the right to execute was granted for certain. A call that never came back says
// nothing, and a transaction that was not committed left nothing to be fenced.
func grants(o *operation) []*history.Write {
	var granted []*history.Write
	for _, w := range o.writes {
		if !w.Granted || w.Ended == 0 {
			continue
		}
		if w.Call == history.CallReserve || w.Call == history.CallTransact && w.Accepted {
			granted = append(granted, w)
		}
	}
	return granted
}

// ownerCall reports whether the call names the token of an owner.
func ownerCall(w *history.Write) bool {
	switch w.Call {
	case history.CallExtend, history.CallCheckpoint, history.CallComplete, history.CallRelease, history.CallAbandon,
		history.CallReject, history.CallResolveCompleted, history.CallResolveNotExecuted, history.CallResolveStep:
		return true
	}
	return false
}

// settlesWithAnswer reports whether the call stores an answer.
func settlesWithAnswer(w *history.Write) bool {
	return w.Call == history.CallComplete || w.Call == history.CallResolveCompleted
}

// repeatsSettlement reports whether the call only says again what the record holds: that is accepted at any time (S6).
func repeatsSettlement(w *history.Write, record *history.Record) bool {
	return settlesWithAnswer(w) && record != nil && record.Digest == w.Digest && record.Attempt == w.Attempt
}

// ladder has the highest token that was granted before any given time.
type ladder struct {
	// ended are the times at which the grants came back, ascending.
	ended []int64
	// highest has the highest token among the grants up to the one at the same place.
	highest []int64
}

func newLadder(granted []*history.Write) *ladder {
	byEnd := slices.Clone(granted)
	slices.SortFunc(byEnd, func(a, b *history.Write) int { return cmp.Compare(a.Ended, b.Ended) })
	l := new(ladder)
	for i, g := range byEnd {
		highest := g.Attempt
		if i > 0 {
			highest = max(highest, l.highest[i-1])
		}
		l.ended = append(l.ended, g.Ended)
		l.highest = append(l.highest, highest)
	}
	return l
}

// before returns the highest token of the grants that came back before the time.
func (l *ladder) before(time int64) (token int64, ok bool) {
	n := sort.Search(len(l.ended), func(i int) bool { return l.ended[i] >= time })
	if n == 0 {
		return 0, false
	}
	return l.highest[n-1], true
}

// checkSettledOnce is I7: all answers that the store accepted are one, and it is the one that is stored.
func checkSettledOnce(o *operation, f *findings) {
	if o.busted {
		return
	}
	var first *history.Write
	for _, w := range o.writes {
		switch {
		case !w.Accepted || !settlesWithAnswer(w):
		case first == nil:
			first = w
		case w.Digest != first.Digest:
			f.add("I7", o, "two answers were accepted: %s from %s (%s) and %s from %s (%s)",
				first.Digest, first.Node, first.Call, w.Digest, w.Node, w.Call)
			return
		}
	}
	if first == nil || o.record == nil {
		return
	}
	if !stillHolds(o.record, first.Digest) {
		f.add("I7", o, "the answer %s was accepted, but the record is %s with %q", first.Digest, o.state(), o.record.Digest)
	}
}

// stillHolds reports whether the record has the answer, or had it until it expired: then it has lost its digest with
// it.
func stillHolds(record *history.Record, digest string) bool {
	return record.State == "completed" && record.Digest == digest ||
		record.State == "expired" && (record.Digest == digest || record.Digest == "")
}
