package check

import (
	"testing"

	"github.com/onceward/onceward/lab/chaos/internal/history"
)

// price is what every operation with money moves, and concert what every booking takes a place of.
const (
	price   = 250
	concert = "concert"
)

// story is a history under construction, with a clock that moves by ten at each look.
type story struct {
	*history.Run
	clock int64
}

func (s *story) tick() int64 {
	s.clock += 10
	return s.clock
}

// ask adds an attempt of scope "s" that nothing overlaps.
func (s *story) ask(a history.Attempt) {
	if a.Scope == "" {
		a.Scope = "s"
	}
	if a.Payload == "" {
		a.Payload = a.Reference
	}
	if a.Kind != "entry" && a.Amount == 0 {
		a.Amount = price
	}
	a.Sent = s.tick()
	if a.Status != 0 {
		a.Returned = s.tick()
	}
	s.Attempts = append(s.Attempts, a)
}

// write adds a call to the store that came back.
func (s *story) write(w history.Write) {
	w.Node, w.Scope, w.Seq = "n", "s", uint64(len(s.Writes))
	w.Began, w.Ended = s.tick(), s.tick()
	s.Writes = append(s.Writes, w)
	if act := actOf(w.Call); act != "" {
		s.Audits = append(s.Audits, history.Audit{
			Scope: "s", Key: w.Key, Attempt: w.Attempt, Actor: "olga",
			Action: act,
		})
	}
}

// grant adds a reservation that was granted.
func (s *story) grant(key string, token int64) {
	s.write(history.Write{Call: history.CallReserve, Key: key, Attempt: token, Granted: true, Accepted: true})
}

func (s *story) complete(key string, token int64, digest string) {
	s.write(history.Write{Call: history.CallComplete, Key: key, Attempt: token, Accepted: true, Digest: digest})
}

func (s *story) record(key, state string, token int64, digest string) *history.Record {
	s.Records = append(s.Records, history.Record{Scope: "s", Key: key, State: state, Attempt: token, Digest: digest})
	return &s.Records[len(s.Records)-1]
}

// stored adds the completed record of an answer.
func (s *story) stored(a history.Attempt, token int64) {
	r := s.record(a.Key, "completed", token, "d-"+a.Reference)
	r.Status, r.Body = a.Status, a.Body
}

func (s *story) effect(book, key, reference string) *history.Effect {
	s.Effects = append(s.Effects, history.Effect{
		Book: book, ID: "e-" + reference, Scope: "s", Key: key, Reference: reference, Amount: price,
	})
	return &s.Effects[len(s.Effects)-1]
}

func (s *story) row(table, key, reference, state string) {
	row := history.Row{Table: table, Scope: "s", Key: key, Reference: reference, State: state, ID: "r-" + reference}
	s.Rows = append(s.Rows, row)
}

// book adds a booking that was confirmed, and takes its place.
func (s *story) book(key, reference string) {
	s.row("booking", key, reference, "confirmed")
	s.Rows[len(s.Rows)-1].Item = concert
	s.Stock[0].Left--
}

// stock is what there is to be booked before the first booking.
func stock() []history.Stock {
	return []history.Stock{{Item: concert, Total: 90, Left: 90}, {Item: "theatre", Total: 40, Left: 40}}
}

// body is an answer of the application that names its reference and its account.
func body(reference string) string { return `{"id":"` + reference + `","account":"s"}` }

// ok is a success for a request.
func ok(kind, key, reference string) history.Attempt {
	return history.Attempt{
		Kind: kind, Key: key, Reference: reference,
		Status: 201, Body: body(reference), Headers: map[string]string{"Location": "/" + reference},
	}
}

// problem is an answer of Onceward's own to a request.
func problem(kind, key, reference string, status int, code string) history.Attempt {
	return history.Attempt{Kind: kind, Key: key, Reference: reference, Status: status, Code: code}
}

// clean is a history of one operation of each sort in which every promise is kept. The key says what became of it.
func clean() *history.Run {
	s := &story{Run: &history.Run{Stock: stock(), Faults: map[string]int{"kill": 1}, Planned: []string{"kill"}}}
	s.entries()
	s.payments()
	s.bookings()
	s.refunds()
	s.transfers()
	s.unexecuted()
	s.shipments()
	s.trips()
	s.lives()
	s.acts()
	s.strays()
	return s.Run
}

func (s *story) entries() {
	s.write(history.Write{Call: history.CallTransact, Key: "written", Attempt: 1, Granted: true, Accepted: true})
	s.ask(ok("entry", "written", "E1"))
	s.stored(ok("entry", "written", "E1"), 1)
	s.row("entry", "written", "E1", "")
}

func (s *story) payments() {
	s.ask(history.Attempt{Kind: "payment", Key: "paid", Reference: "P1", Lost: "timeout"})
	s.write(history.Write{Call: history.CallTransact, Key: "paid", Attempt: 1, Granted: true, Accepted: true})
	s.ask(problem("payment", "paid", "P1", 409, "in-progress"))
	s.ask(ok("payment", "paid", "P1"))
	replay := ok("payment", "paid", "P1")
	replay.Replayed = true
	s.ask(replay)
	s.stored(replay, 1)
	s.row("payment", "paid", "P1", "charged")
	s.effect("charges", "paid", "P1")

	s.ask(ok("payment", "bounced", "P2"))
	s.stored(ok("payment", "bounced", "P2"), 1)
	s.row("payment", "bounced", "P2", "declined")
	s.effect("charges", "bounced", "P2").Declined = true
	s.Messages = append(s.Messages,
		history.Message{ID: "m1", Scope: "s", Key: "paid", State: "done"},
		history.Message{ID: "m2", Scope: "s", Key: "bounced", State: "captured"})
}

func (s *story) bookings() {
	// The owner is lost, another one resumes, and the first one comes back and is fenced.
	s.ask(history.Attempt{Kind: "booking", Key: "booked", Reference: "B1", Lost: "cut"})
	s.grant("booked", 1)
	s.grant("booked", 2)
	s.complete("booked", 2, "d-B1")
	s.write(history.Write{Call: history.CallComplete, Key: "booked", Attempt: 1, Digest: "late", Err: "fenced"})
	s.complete("booked", 2, "d-B1")
	s.ask(ok("booking", "booked", "B1"))
	s.stored(ok("booking", "booked", "B1"), 2)
	s.book("booked", "B1")
	s.effect("charges", "booked", "B1")
}

func (s *story) refunds() {
	// The outcome becomes unknown and is resolved. Another payload comes too late.
	s.ask(problem("refund", "refunded", "R1", 500, "outcome-unknown"))
	s.grant("refunded", 1)
	s.write(history.Write{Call: history.CallAbandon, Key: "refunded", Attempt: 1, Accepted: true})
	s.ask(problem("refund", "refunded", "R1", 409, "outcome-unknown"))
	s.ask(problem("refund", "refunded", "R1b", 422, "mismatch"))
	s.write(history.Write{Call: history.CallResolveCompleted, Key: "refunded", Attempt: 1, Accepted: true, Digest: "d-R1"})
	s.ask(ok("refund", "refunded", "R1"))
	s.stored(ok("refund", "refunded", "R1"), 1)
	s.row("refund", "refunded", "R1", "")
	s.effect("refunds", "refunded", "R1")

	declined := history.Attempt{Kind: "refund", Key: "refused", Reference: "R2", Status: 402, Body: "declined"}
	s.grant("refused", 1)
	s.ask(declined)
	s.ask(declined)
	s.complete("refused", 1, "d-R2")
	s.stored(declined, 1)
	s.effect("refunds", "refused", "R2").Declined = true
}

func (s *story) transfers() {
	s.grant("moved", 5)
	s.write(history.Write{Call: history.CallRelease, Key: "moved", Attempt: 5, Accepted: true})
	s.ask(problem("transfer", "moved", "T1", 503, "not-executed"))
	s.grant("moved", 6)
	s.write(history.Write{Call: history.CallExtend, Key: "moved", Attempt: 6, Accepted: true})
	s.complete("moved", 6, "d-T1")
	s.ask(ok("transfer", "moved", "T1"))
	s.stored(ok("transfer", "moved", "T1"), 6)
	s.effect("transfers", "moved", "T1")
	s.ask(history.Attempt{Scope: "other", Kind: "transfer", Key: "moved", Reference: "T9", Status: 503, Code: "store-unavailable"})
}

func (s *story) unexecuted() {
	s.ask(problem("transfer", "idle", "T2", 503, "store-unavailable"))
	s.ask(problem("transfer", "idle", "T2b", 422, "mismatch"))
	s.grant("idle", 1)
	s.write(history.Write{Call: history.CallRelease, Key: "idle", Attempt: 1, Accepted: true})
	s.record("idle", "failed_retryable", 1, "")
}

func TestCleanHistoryHasNoViolation(t *testing.T) {
	t.Parallel()
	for _, v := range Check(clean()) {
		t.Error(v)
	}
	if violations := Check(&history.Run{}); len(violations) != 0 {
		t.Errorf("an empty run has violations: %v", violations)
	}
}
