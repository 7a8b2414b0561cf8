package check

import (
	"slices"
	"testing"

	"github.com/onceward/onceward/lab/chaos/internal/history"
)

// corruption is one thing gone wrong in a clean history, and the invariants that it breaks, no others.
type corruption struct {
	name    string
	corrupt func(*story)
	breaks  []string
}

// corruptions are at least one for each thing that an invariant says.
var corruptions = slices.Concat(effectCorruptions, valueCorruptions, answerCorruptions, tokenCorruptions,
	quietCorruptions,
	harderCorruptions, callCorruptions)

var allInvariants = []string{
	"I1", "I2", "I3", "I4", "I5", "I6", "I7", "I8", "I9", "I10", "I11", "I12", "I13", "I14",
	"I15", "I16", "I18",
}

var effectCorruptions = []corruption{
	{"a second effect", func(s *story) { s.effect("transfers", "moved", "T1") }, []string{"I1", "I2"}},
	{"a second effect under another reference", func(s *story) { s.effect("transfers", "moved", "T1b") }, []string{"I1"}},
	{"a second row under another reference", func(s *story) { s.row("booking", "booked", "B1b", "") }, []string{"I1"}},
	{"a second payment, charged as well", func(s *story) {
		s.row("payment", "paid", "P1b", "charged")
		s.effect("charges", "paid", "P1b")
	}, []string{"I1"}},
	{"a success without its effect", func(s *story) { s.dropEffect("moved") }, []string{"I2"}},
	{"a success with the effect of something else", func(s *story) { s.effectOf("moved").Reference = "T7" }, []string{"I2"}},
	{"a success whose effect was declined", func(s *story) { s.effectOf("refunded").Declined = true }, []string{"I2"}},
	{"a booking without its row", func(s *story) { s.dropRow("booked") }, []string{"I1", "I2"}},
	{"a refund without its row", func(s *story) { s.dropRow("refunded") }, []string{"I2"}},
	{"an entry without its row", func(s *story) { s.dropRow("written") }, []string{"I2"}},
	{"an entry that moved money", func(s *story) { s.effect("charges", "written", "E1").Amount = 0 }, []string{"I2"}},
	{"a transfer that was charged as well", func(s *story) { s.effect("charges", "moved", "T1") }, []string{"I2"}},
	{"a payment without its row", func(s *story) { s.dropRow("paid") }, []string{"I2", "I10"}},
	{"a payment that was declined and charged", func(s *story) { s.effectOf("bounced").Declined = false }, []string{"I2", "I10"}},
	{"a success whose record was released", func(s *story) { s.recordOf("paid").State = "failed_retryable" }, []string{"I2", "I5"}},
	{"a booking that was declined without saying so", func(s *story) {
		s.rowOf("booked").State = "declined"
		s.dropEffect("booked")
	}, []string{"I2"}},
	{"a success of a kind that is not known", func(s *story) { s.attemptOf("moved", 1).Kind = "gift" }, []string{"I2"}},
	{"a refusal that moved money", func(s *story) { s.effectOf("refused").Declined = false }, []string{"I4"}},
	{"a refusal that left a row", func(s *story) { s.row("refund", "refused", "R2", "") }, []string{"I4"}},
	{"an effect though everyone was told no", func(s *story) {
		s.effect("transfers", "idle", "T2")
		s.recordOf("idle").State = "completed"
	}, []string{"I4"}},
	{"a row though everyone was told no", func(s *story) { s.row("booking", "idle", "T2", "") }, []string{"I4"}},
	{"effects of no operation", func(s *story) {
		s.Effects = append(s.Effects, history.Effect{Book: "refunds", ID: "x"}, history.Effect{Book: "refunds", ID: "y"})
	}, []string{"I5"}},
	{"an effect of an operation that no client asked for", func(s *story) { s.effect("refunds", "unheard", "X") }, []string{"I5"}},
	{"an effect whose record was released", func(s *story) {
		s.ask(history.Attempt{Kind: "transfer", Key: "gone", Reference: "T3", Lost: "timeout"})
		s.record("gone", "failed_retryable", 1, "")
		s.effect("transfers", "gone", "T3")
	}, []string{"I5"}},
	{"an effect without a record", func(s *story) {
		s.ask(history.Attempt{Kind: "transfer", Key: "gone", Reference: "T3", Lost: "timeout"})
		s.effect("transfers", "gone", "T3")
	}, []string{"I5"}},
	{"a mismatch that was executed", func(s *story) { s.effectOf("refunded").Reference = "R1b" }, []string{"I2", "I8"}},
	{"a mismatch that left a row", func(s *story) { s.row("entry", "refunded", "R1b", "") }, []string{"I8"}},
}

// valueCorruptions have the right number of everything, but not the right values.
var valueCorruptions = []corruption{
	{"a payment over another amount", func(s *story) { s.effectOf("paid").Amount++ }, []string{"I2"}},
	{"a booking over another amount", func(s *story) { s.effectOf("booked").Amount-- }, []string{"I2"}},
	{"a refund over another amount", func(s *story) { s.effectOf("refunded").Amount = 0 }, []string{"I2"}},
	{"a transfer over another amount", func(s *story) { s.effectOf("moved").Amount *= -1 }, []string{"I2"}},
	{"a transfer in another book", func(s *story) { s.effectOf("moved").Book = "refunds" }, []string{"I2"}},
	{"a booking that was not confirmed", func(s *story) { s.rowOf("booked").State = "reserved" }, []string{"I2"}},
	{"a booking that took two places", func(s *story) { s.Stock[0].Left-- }, []string{"I1"}},
	{"a booking that took no place", func(s *story) { s.Stock[0].Left++ }, []string{"I1"}},
	{"a place that is gone without a booking", func(s *story) { s.Stock[1].Left-- }, []string{"I1"}},
	{"a booking that took a place of something else", func(s *story) { s.rowOf("booked").Item = "theatre" }, []string{"I1"}},
	{"another status is stored", func(s *story) { s.recordOf("moved").Status = 200 }, []string{"I3"}},
	{"another body is stored", func(s *story) { s.recordOf("moved").Body += " " }, []string{"I3"}},
	{"no answer is stored", func(s *story) {
		s.recordOf("moved").Status, s.recordOf("moved").Body = 0, ""
	}, []string{"I3"}},
	{"another refusal is stored", func(s *story) { s.recordOf("refused").Body = "sold out" }, []string{"I3"}},
	{"one client was told something else than is stored", func(s *story) {
		s.attemptOf("paid", 2).Status, s.attemptOf("paid", 2).Returned = 0, 0
		s.attemptOf("paid", 3).Status = 200
	}, []string{"I3"}},
}

// afterwards is one more answer to an operation that has a definitive one.
func afterwards(status int, code string) func(*story) {
	return func(s *story) { s.ask(problem("transfer", "moved", "T1", status, code)) }
}

var answerCorruptions = []corruption{
	{"another status", func(s *story) { s.attemptOf("paid", 3).Status = 200 }, []string{"I3", "I11"}},
	{"another body", func(s *story) { s.attemptOf("paid", 3).Body += " " }, []string{"I3", "I11"}},
	{"another header", func(s *story) { s.attemptOf("paid", 3).Headers["Location"] = "/" }, []string{"I3", "I11"}},
	{"a missing header", func(s *story) { s.attemptOf("paid", 3).Headers = nil }, []string{"I3", "I11"}},
	{"an answer to each of two payloads", func(s *story) {
		s.ask(history.Attempt{Kind: "refund", Key: "refused", Reference: "R3", Status: 402, Body: "declined"})
	}, []string{"I3", "I11"}},
	{"a success that does not name its reference", func(s *story) {
		s.attemptOf("moved", 1).Body, s.recordOf("moved").Body = "{}", "{}"
	}, []string{"I9"}},
	{"data of another scope", func(s *story) { s.attemptOf("moved", 1).Body = `{"id":"T1","account":"other"}` }, []string{"I3", "I9"}},
	{"data of another scope in a problem", func(s *story) {
		s.attemptOf("idle", 0).Body = `"account" {"account":1,"account":"s","account" : "other"}`
	}, []string{"I9"}},
	{"in progress after the answer", afterwards(409, "in-progress"), []string{"I11"}},
	{"unknown after the answer", afterwards(409, "outcome-unknown"), []string{"I11"}},
	{"became unknown after the answer", afterwards(500, "outcome-unknown"), []string{"I11"}},
	{"a mismatch of the payload that has the key", afterwards(422, "mismatch"), []string{"I11"}},
	{"a mismatch with nothing", func(s *story) { s.ask(problem("transfer", "new", "T4", 422, "mismatch")) }, []string{"I11"}},
}

var tokenCorruptions = []corruption{
	{"a token that went back", func(s *story) { s.grant("booked", 1) }, []string{"I6"}},
	{"a token in a transaction that went back", func(s *story) {
		s.write(history.Write{Call: history.CallTransact, Key: "booked", Attempt: -1, Granted: true, Accepted: true})
	}, []string{"I6"}},
	{"a token that was granted twice at once", func(s *story) {
		twin := *s.writeOf("moved", 0)
		twin.Node = "m"
		s.Writes = append(s.Writes, twin)
	}, []string{"I6"}},
	{"a token of two transactions with different answers", func(s *story) {
		s.transactTwins("n2", "d-B2", 5)
	}, []string{"I6"}},
	{"a token of two transactions with answers that are not known", func(s *story) {
		s.transactTwins("n2", "", 5)
		s.Writes[len(s.Writes)-2].Digest = ""
	}, []string{"I6"}},
	{"a token of one reservation on two nodes", func(s *story) { s.transactTwins("n1", "d-B1", 5) }, []string{"I6"}},
	{"a token of two transactions one after the other", func(s *story) {
		s.transactTwins("n2", "d-B1", -1)
	}, []string{"I6"}},
	{"a heartbeat of the older of two grants at once", func(s *story) {
		s.grant("moved", 9)
		s.grant("moved", 8)
		last := len(s.Writes) - 1
		s.Writes[last].Began = s.Writes[last-1].Ended
		s.write(history.Write{Call: history.CallExtend, Key: "moved", Attempt: 8, Accepted: true})
	}, []string{"I6"}},
	{"a heartbeat of a fenced owner", func(s *story) { s.late("booked", history.CallExtend, "") }, []string{"I6"}},
	{"a checkpoint of a fenced owner", func(s *story) { s.late("booked", history.CallCheckpoint, "") }, []string{"I6"}},
	{"a release by a fenced owner", func(s *story) { s.late("booked", history.CallRelease, "") }, []string{"I6"}},
	{"an abandonment by a fenced owner", func(s *story) { s.late("booked", history.CallAbandon, "") }, []string{"I6"}},
	{"a completion by a fenced owner", func(s *story) { s.late("booked", history.CallComplete, "d-B1") }, []string{"I6"}},
	{"a resolution of a fenced attempt", func(s *story) { s.late("booked", history.CallResolveCompleted, "d-B1") }, []string{"I6"}},
	{"a release of a fenced attempt", func(s *story) { s.late("booked", history.CallResolveNotExecuted, "") }, []string{"I6"}},
	{"a step resolved of a fenced attempt", func(s *story) { s.late("booked", history.CallResolveStep, "") }, []string{"I6"}},
	{"two answers accepted", func(s *story) { s.complete("moved", 6, "else") }, []string{"I7"}},
	{"an answer and another resolution accepted", func(s *story) {
		s.write(history.Write{Call: history.CallResolveCompleted, Key: "moved", Attempt: 6, Accepted: true, Digest: "else"})
	}, []string{"I7"}},
	{"another answer in the record", func(s *story) { s.recordOf("moved").Digest = "else" }, []string{"I7"}},
	{"another answer in a record that expired", func(s *story) {
		s.recordOf("refused").State, s.recordOf("refused").Digest = "expired", "else"
	}, []string{"I7"}},
	{"a settled record that opened again", func(s *story) { s.recordOf("moved").State = "unknown" }, []string{"I2", "I7", "I13"}},
}

var quietCorruptions = []corruption{
	{"a payment that was never charged", func(s *story) { s.dropEffect("bounced") }, []string{"I10"}},
	{"a payment that was declined twice", func(s *story) { s.effect("charges", "bounced", "P2").Declined = true }, []string{"I10"}},
	{"a payment that takes a refusal for a charge", func(s *story) { s.rowOf("bounced").State = "charged" }, []string{"I2", "I10"}},
	{"a payment that does not know its charge", func(s *story) { s.rowOf("paid").State = "new" }, []string{"I10"}},
	{"a charge for a payment that was rolled back", func(s *story) {
		s.ask(history.Attempt{Kind: "payment", Key: "undone", Reference: "P3", Lost: "timeout"})
		s.record("undone", "completed", 1, "")
		s.effect("charges", "undone", "P3")
	}, []string{"I10"}},
	{"a message that waits", func(s *story) { s.Messages[0].State = "pending" }, []string{"I10", "I13"}},
	{"a message that is dead", func(s *story) { s.Messages[0].State = "dead" }, []string{"I10", "I13"}},
	{"an answer without a record", func(s *story) { s.dropRecord("refused") }, []string{"I12"}},
	{"a success without a record", func(s *story) { s.dropRecord("bounced") }, []string{"I2", "I12"}},
	{"a grant without a record", func(s *story) { s.dropRecord("idle") }, []string{"I12"}},
	{"an unknown outcome after quiet", func(s *story) { s.recordOf("idle").State = "unknown" }, []string{"I13"}},
	{"something in progress after quiet", func(s *story) { s.recordOf("idle").State = "in_progress" }, []string{"I13"}},
	{"an operation that was given up and stays in progress", func(s *story) {
		s.giveUp("refund", "lost")
		s.record("lost", "in_progress", 1, "")
	}, []string{"I13"}},
	{"an operation that was given up and stays unknown", func(s *story) {
		s.giveUp("refund", "lost")
		s.record("lost", "unknown", 1, "")
	}, []string{"I13"}},
	{"a payment that was given up and charged twice", func(s *story) {
		s.giveUp("payment", "lost")
		s.record("lost", "completed", 1, "")
		s.row("payment", "lost", "lost-r", "charged")
		s.effect("charges", "lost", "lost-r")
		s.effect("charges", "lost", "lost-r")
	}, []string{"I1", "I10"}},
	{"a dead letter", func(s *story) {
		s.recordOf("idle").State = "unknown"
		s.recordOf("idle").DeadLetter = true
	}, []string{"I13"}},
	{"a fault that never fired", func(s *story) { s.Planned = append(s.Planned, "pause") }, []string{"I14"}},
}

func TestEachCorruptionIsFound(t *testing.T) {
	t.Parallel()
	for _, c := range corruptions {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := &story{Run: clean(), clock: 1_000_000}
			c.corrupt(s)
			violations := Check(s.Run)
			if got := invariants(violations); !slices.Equal(got, c.breaks) {
				t.Errorf("broken are %v, want %v: %v", got, c.breaks, violations)
			}
		})
	}
}

// A place that is gone cannot be laid at the door of one operation.
func TestStockIsOfNoOperation(t *testing.T) {
	t.Parallel()
	run := clean()
	run.Stock[0].Left--
	want := Violation{
		Invariant: "I1", Detail: "2 places of concert are taken (88 of 90 are left), but there are 1 bookings of it",
	}
	if got := Check(run); len(got) != 1 || got[0] != want {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestEachInvariantHasACorruption(t *testing.T) {
	t.Parallel()
	for _, invariant := range allInvariants {
		if !slices.ContainsFunc(corruptions, func(c corruption) bool { return slices.Contains(c.breaks, invariant) }) {
			t.Errorf("no corruption breaks %s", invariant)
		}
	}
}

// invariants are the different ones among the violations, in their order.
func invariants(violations []Violation) []string {
	var names []string
	for _, name := range append(slices.Clone(allInvariants), "I11 undecided") {
		if slices.ContainsFunc(violations, func(v Violation) bool { return v.Invariant == name }) {
			names = append(names, name)
		}
	}
	return names
}
