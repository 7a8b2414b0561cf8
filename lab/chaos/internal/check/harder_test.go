package check

import (
	"slices"
	"time"

	"github.com/onceward/onceward/lab/chaos/internal/history"
)

// shipments adds a shipment of three parcels. The bearer of the first one was replaced.
func (s *story) shipments() {
	s.write(history.Write{Call: history.CallTransact, Key: "shipped", Attempt: 1, Granted: true, Accepted: true})
	shipped := ok("shipment", "shipped", "S1")
	shipped.Amount = 3
	s.ask(shipped)
	s.stored(shipped, 1)
	for number := 1; number <= 3; number++ {
		s.Rows = append(s.Rows, history.Row{
			Table: tableArrival, Scope: "s", Key: "shipped", Item: "high",
			Reference: "S1", Number: number, Place: number,
		})
	}
	again := ok("shipment", "shipped again", "S2")
	again.Amount = 1
	s.ask(again)
	s.stored(again, 1)
	s.Rows = append(s.Rows, history.Row{
		Table: tableArrival, Scope: "s", Key: "shipped again", Item: "high",
		Reference: "S2", Number: 1, Place: 4,
	})
	s.write(history.Write{Call: history.CallClaimMessage, Message: "m1", Attempt: 70, Granted: true, Accepted: true})
	s.write(history.Write{Call: history.CallClaimMessage, Message: "m1", Attempt: 8, Granted: true, Accepted: true})
	s.write(history.Write{Call: history.CallFinishMessage, Message: "m1", Attempt: 70})
	s.write(history.Write{Call: history.CallFinishMessage, Message: "m1", Attempt: 8, Accepted: true})
}

// trips adds a phased operation whose call was in doubt for a while.
func (s *story) trips() {
	s.grant("travelled", 1)
	s.write(history.Write{Call: history.CallResolveStep, Key: "travelled", Attempt: 1, Accepted: true})
	s.grant("travelled", 3)
	s.complete("travelled", 3, "d-V1")
	s.ask(ok("trip", "travelled", "V1"))
	s.stored(ok("trip", "travelled", "V1"), 3)
	s.effect("transfers", "travelled", "V1")
	for _, step := range []string{"hold", "confirm", "thank"} {
		s.row("stay "+step, "travelled", "V1", "")
	}
}

// dropStep removes what a step left behind.
func (s *story) dropStep(step string) {
	s.Rows = slices.DeleteFunc(s.Rows, func(r history.Row) bool { return r.Table == "stay "+step })
}

// lives adds an operation that expired and was executed again.
func (s *story) lives() {
	for life := int64(1); life <= 2; life++ {
		reference := "F" + string(rune('0'+life))
		s.write(history.Write{
			Call: history.CallTransact, Key: "flashed", Attempt: life, Granted: true, Accepted: true,
			Now: 1000 * life, Expires: 1000*life + 900,
		})
		flashed := ok("flash", "flashed", "F")
		flashed.Body = `{"id":"r-` + reference + `","reference":"F","account":"s"}`
		s.ask(flashed)
		s.row(tableEntry, "flashed", reference, "")
	}
	s.record("flashed", "completed", 2, "d")
}

// acts adds an operation that an operator settled, with an old page at hand, and a webhook that was forged.
func (s *story) acts() {
	s.ask(problem("doubt", "doubted", "D1", 500, "outcome-unknown"))
	s.grant("doubted", 1)
	s.act("doubted", 1, "act 1", "done")
	s.write(history.Write{Call: history.CallResolveNotExecuted, Key: "doubted", Attempt: 1, Accepted: true})
	s.grant("doubted", 2)
	s.act("doubted", 1, "act 2", "failed: fenced")
	s.complete("doubted", 2, "d-D1")
	s.ask(ok("doubt", "doubted", "D1"))
	s.stored(ok("doubt", "doubted", "D1"), 2)
	s.Forgeries = append(s.Forgeries, history.Forgery{
		Scope: "s", Key: "refunded", How: "without a signature", Status: 401, Claims: "re_forged",
	}, history.Forgery{
		Scope: "s", Key: "refunded", How: "signed by ben", Foreign: true, Status: 204, Claims: "re_foreign",
	})
}

// strays adds a charge and a refund of no operation, and a row of a refund that was never made. While one more refund
// is being written down, it is missing.
func (s *story) strays() {
	s.Effects = append(s.Effects,
		history.Effect{Book: bookCharges, ID: "ch_stray", Reference: "stray-1", Stray: true},
		history.Effect{Book: "refunds", ID: "re_stray", Reference: "stray-1", Stray: true})
	s.Rows = append(s.Rows, history.Row{Table: "refund", ID: "re_9", Reference: "stray-2", Stray: true})
	for _, prefix := range []string{"", history.FinalRun} {
		s.Findings = append(s.Findings,
			history.Finding{Run: prefix + "charges 1/2", Key: "ch_stray", Kind: missingHere},
			history.Finding{Run: prefix + "refunds 1/2", Key: "re_stray", Kind: missingHere},
			history.Finding{Run: prefix + "refunds 1/2", Key: "re_9", Kind: missingThere})
	}
	s.find("refunds 1/2", "e-R1", missingHere)
}

// strayLate adds a row of a refund that was never made, which may not have been there in time.
func (s *story) strayLate(id string) {
	s.Rows = append(s.Rows, history.Row{Table: "refund", ID: id, Reference: "stray-3", Stray: true, Late: true})
}

func (s *story) find(run, key, kind string) {
	s.Findings = append(s.Findings, history.Finding{Run: run, Key: key, Kind: kind})
}

// missRefund adds that a refund is missing, at a time after it was answered.
func (s *story) missRefund(after time.Duration) {
	s.Findings = append(s.Findings, history.Finding{
		Run: "refunds 2/3", Key: s.effectOf("refunded").ID, Kind: missingHere,
		At: s.writeOf("refunded", 2).Ended + int64(after),
	})
}

// dropFinding removes what a comparison found.
func (s *story) dropFinding(run, key string) {
	s.Findings = slices.DeleteFunc(s.Findings, func(f history.Finding) bool { return f.Run == run && f.Key == key })
}

// act adds an act with what the audit says of it.
func (s *story) act(key string, attempt int64, why, outcome string) {
	s.Acts = append(s.Acts, history.Act{
		Scope: "s", Key: key, Attempt: attempt, Action: "resolve not executed", Why: why, Answered: true,
		Done: outcome == "done",
	})
	for _, said := range []string{"", outcome} {
		s.Audits = append(s.Audits, history.Audit{
			Scope: "s", Key: key, Attempt: attempt, Actor: "olga", Action: "resolve not executed", Reason: why,
			Outcome: said,
		})
	}
}

// arrival returns the parcel of that number.
func (s *story) arrival(number int) *history.Row {
	is := func(r history.Row) bool { return r.Table == tableArrival && r.Number == number }
	return &s.Rows[slices.IndexFunc(s.Rows, is)]
}

func (s *story) dropAudits(which func(a history.Audit) bool) {
	s.Audits = slices.DeleteFunc(s.Audits, which)
}

// setOutcome changes how an act ended by the audit.
func (s *story) setOutcome(why, outcome string) {
	for i := range s.Audits {
		if s.Audits[i].Reason == why && s.Audits[i].Outcome != "" {
			s.Audits[i].Outcome = outcome
		}
	}
}

// held adds a grant by a lease that lasts, and then another one.
func (s *story) held(between func()) {
	s.write(history.Write{
		Call: history.CallReserve, Key: "moved", Attempt: 20, Granted: true, Accepted: true,
		Lease: 1000, Nonce: "held",
	})
	between()
	s.write(history.Write{
		Call: history.CallReserve, Key: "moved", Attempt: 21, Granted: true, Accepted: true,
		Lease: 1000,
	})
}

var harderCorruptions = []corruption{
	{"a parcel that was lost", func(s *story) {
		s.Rows = slices.DeleteFunc(s.Rows, func(r history.Row) bool { return r.Number == 3 })
	}, []string{"I10"}},
	{"a parcel that came twice", func(s *story) { s.Rows = append(s.Rows, *s.arrival(2)) }, []string{"I10"}},
	{"parcels out of order", func(s *story) { s.arrival(1).Place, s.arrival(2).Place = 2, 1 }, []string{"I10"}},
	{"a shipment that overtook another one", func(s *story) {
		for i := range s.Rows {
			if s.Rows[i].Table == tableArrival && s.Rows[i].Reference == "S2" {
				s.Rows[i].Place = 0
			}
		}
	}, []string{"I10"}},
	{"a bearer that was replaced", func(s *story) {
		finished := func(w history.Write) bool { return w.Call == history.CallFinishMessage }
		s.Writes[slices.IndexFunc(s.Writes, finished)].Accepted = true
	}, []string{"I6"}},
	{"a second owner while a lease lasts", func(s *story) { s.held(func() {}) }, []string{"I6"}},
	{"a life that began too early", func(s *story) { s.writeOf("flashed", 1).Now = 1899 }, []string{"I12"}},
	{"a life that began before the clock went ahead", func(s *story) {
		s.writeOf("flashed", 1).Now = 1899
		s.Steps = append(s.Steps, history.Step{Began: s.tick(), Ended: s.tick(), Clock: 5000})
	}, []string{"I12"}},
	{"a token of an earlier life", func(s *story) { s.writeOf("flashed", 1).Attempt = 1 }, []string{"I6"}},
	{"a life without its row", func(s *story) { s.dropRow("flashed") }, []string{"I2"}},
	{"a row more than there are lives", func(s *story) { s.row(tableEntry, "flashed", "F3", "") }, []string{"I1"}},
	{"a step that was left out", func(s *story) { s.dropStep("confirm") }, []string{"I15"}},
	{
		"a step that was done twice", func(s *story) { s.row("stay confirm", "travelled", "V1", "") },
		[]string{"I1", "I15"},
	},
	{"a step settled without a word", func(s *story) {
		s.dropAudits(func(a history.Audit) bool { return a.Key == "travelled" })
	}, []string{"I16"}},
	{"a resolution that was not announced", func(s *story) {
		s.dropAudits(func(a history.Audit) bool { return a.Key == "doubted" && a.Attempt == 1 && a.Reason != "act 2" })
	}, []string{"I16"}},
	{"an act that is not in the audit", func(s *story) {
		s.dropAudits(func(a history.Audit) bool { return a.Reason == "act 1" })
	}, []string{"I16"}},
	{
		"an act that was done and failed by the audit", func(s *story) { s.setOutcome("act 1", "failed: away") },
		[]string{"I16"},
	},
	{"an act that failed and was done by the audit", func(s *story) { s.setOutcome("act 2", "done") }, []string{"I16"}},
	{"a comparison that never was", func(s *story) { s.Findings = nil }, []string{"I5"}},
	{"a stray charge that was not found in time", func(s *story) {
		s.dropFinding("charges 1/2", "ch_stray")
	}, []string{"I5"}},
	{"a stray refund that was not found in time", func(s *story) {
		s.dropFinding("refunds 1/2", "re_stray")
	}, []string{"I5"}},
	{"a refund that never was and was not missed", func(s *story) {
		s.dropFinding("refunds 1/2", "re_9")
	}, []string{"I5"}},
	{"a stray refund that was not found in the quiet", func(s *story) {
		s.dropFinding(history.FinalRun+"refunds 1/2", "re_stray")
	}, []string{"I5"}},
	{"a stray that was found to be something else", func(s *story) {
		s.dropFinding("charges 1/2", "ch_stray")
		s.find("charges 1/2", "ch_stray", "differs")
	}, []string{"I5"}},
	{"a stray that may have come too late and was found to be something else", func(s *story) {
		s.strayLate("re_99")
		s.find("refunds 1/2", "re_99", "differs")
	}, []string{"I5"}},
	{"a refund that is missing long after its answer", func(s *story) {
		s.missRefund(-time.Second)
		s.missRefund(2 * time.Minute)
		s.missRefund(3 * time.Minute)
	}, []string{"I5"}},
	{"a refund that is missing for good", func(s *story) {
		s.find(history.FinalRun+"refunds 1/2", "e-R1", missingHere)
	}, []string{"I5"}},
	{"a refund that is said to be missing at the provider", func(s *story) {
		s.find("refunds 1/2", "e-R1", missingThere)
	}, []string{"I5"}},
	{"a parcel that came twice in a run that is not quiet", func(s *story) {
		s.Unsettled = true
		s.Rows = append(s.Rows, *s.arrival(2))
	}, []string{"I10"}},
	{"a payment charged twice in a run that is not quiet", func(s *story) {
		s.Unsettled = true
		s.rowOf("paid").State = "new"
		s.effect("charges", "paid", "P1")
	}, []string{"I1", "I10"}},
	{"a payment without its charge in a run that is not quiet", func(s *story) {
		s.Unsettled = true
		s.dropEffect("paid")
	}, []string{"I2", "I10"}},
	{"a message that waits in a run that is not quiet", func(s *story) {
		s.Unsettled = true
		s.Messages[0].State = "pending"
	}, []string{"I13"}},
	{"a stray found falsely in a run that is not quiet", func(s *story) {
		s.Unsettled = true
		s.find("refunds 1/2", "e-R1", missingThere)
	}, []string{"I5"}},
	{"an effect in progress in a run that is not quiet", func(s *story) {
		s.Unsettled = true
		s.ask(history.Attempt{Kind: "transfer", Key: "gone", Reference: "T3", Lost: "timeout"})
		s.record("gone", "in_progress", 1, "")
		s.effect("transfers", "gone", "T3")
	}, []string{"I13"}},
	{"a charge that is said to differ", func(s *story) { s.find("charges 1/2", "e-P1", "differs") }, []string{"I5"}},
	{"a forged webhook that was taken", func(s *story) { s.Forgeries[0].Status = 204 }, []string{"I2"}},
	{"a webhook of another account that was written down", func(s *story) {
		s.rowOf("refunded").ID = "re_foreign"
	}, []string{"I2"}},
	{"a webhook of another account that is the answer", func(s *story) {
		body := s.recordOf("refunded").Body + " re_foreign"
		s.recordOf("refunded").Body = body
		for i := range s.Attempts {
			if s.Attempts[i].Key == "refunded" && s.Attempts[i].Status == 201 {
				s.Attempts[i].Body = body
			}
		}
	}, []string{"I2"}},
	{"a forged webhook that was refused and believed", func(s *story) {
		s.recordOf("refunded").Body += " re_forged"
	}, []string{"I2", "I3"}},
	{"a mismatch in the amount alone that was executed", func(s *story) {
		wrong := problem("transfer", "moved", "T1", 422, "mismatch")
		wrong.Payload, wrong.Amount = "T1 over less", price-1
		s.ask(wrong)
		s.effectOf("moved").Amount = price - 1
	}, []string{"I2", "I8"}},
}

// harderExcuses look broken and are not.
var harderExcuses = map[string]func(*story){
	"an older program ended a trip without the newest step": func(s *story) { s.dropStep("thank") },
	"an owner let go before its lease was over": func(s *story) {
		s.held(func() { s.write(history.Write{Call: history.CallRelease, Key: "moved", Attempt: 20, Accepted: true}) })
	},
	"an owner asked for a shorter lease": func(s *story) {
		s.held(func() {
			s.write(history.Write{Call: history.CallExtend, Key: "moved", Attempt: 20, Accepted: true, Lease: 1})
		})
	},
	"the reply to a reservation was lost, and the lease almost over": func(s *story) {
		s.write(history.Write{Call: history.CallReserve, Key: "moved", Lease: 1000, Nonce: "held"})
		s.clock += 960
		s.held(func() {})
	},
	"the clock was set while a lease lasted": func(s *story) {
		s.held(func() { s.Steps = append(s.Steps, history.Step{Began: s.tick(), Ended: s.tick()}) })
	},
	"the clock was set when a life began": func(s *story) {
		began := s.writeOf("flashed", 1)
		began.Now = 1
		s.Steps = append(s.Steps, history.Step{Began: began.Began, Ended: began.Ended})
	},
	"the clock went past an expiry, and back": func(s *story) {
		ended := s.writeOf("flashed", 0).Ended
		s.writeOf("flashed", 1).Now = 1
		ahead := history.Step{Began: ended, Ended: ended + 1, Clock: 5000}
		s.Steps = append(s.Steps, ahead, history.Step{Began: ended + 2, Ended: ended + 3})
	},
	"the outcome of an act is missing": func(s *story) {
		s.dropAudits(func(a history.Audit) bool { return a.Outcome != "" })
	},
	"an act was not answered": func(s *story) {
		s.Acts[0].Answered, s.Acts[0].Done = false, false
		s.setOutcome("act 1", "failed: away")
	},
	"two requests differ in the amount alone": func(s *story) {
		wrong := problem("transfer", "moved", "T1", 422, "mismatch")
		wrong.Payload, wrong.Amount = "T1 over less", price-1
		s.ask(wrong)
	},
	"a stray was found again and again": func(s *story) {
		s.find("charges 2/3", "ch_stray", missingHere)
		s.find(history.FinalRun+"refunds 1/2", "re_9", missingThere)
	},
	"a stray that may have come too late was not found": func(s *story) { s.strayLate("re_99") },
	"a stray that may have come too late was found": func(s *story) {
		s.strayLate("re_99")
		s.find("refunds 1/2", "re_99", missingThere)
		s.find(history.FinalRun+"refunds 1/2", "re_99", missingThere)
	},
	"a refund was missing before its answer": func(s *story) { s.missRefund(-time.Hour) },
	"a refund was missing for who had read before its answer": func(s *story) {
		s.missRefund(20 * time.Second)
	},
	"a refund was missing that may have been made again": func(s *story) {
		s.write(history.Write{Call: history.CallBust, Key: "refunded"})
		s.writeOf("refunded", 3).Ended = 0
		s.missRefund(time.Hour)
	},
	"a charge of a payment was missing after the answer": func(s *story) {
		s.Findings = append(s.Findings, history.Finding{
			Run: "charges 2/3", Key: s.effectOf("paid").ID, Kind: missingHere, At: int64(time.Hour),
		})
	},
	"a parcel is on its way in a run that is not quiet": func(s *story) {
		s.Unsettled = true
		s.Rows = slices.DeleteFunc(s.Rows, func(r history.Row) bool { return r.Number == 3 })
	},
	"a payment is not charged yet in a run that is not quiet": func(s *story) {
		s.Unsettled = true
		s.dropEffect("paid")
		s.rowOf("paid").State = "new"
	},
	"nothing was compared in a run that is not quiet": func(s *story) {
		s.Unsettled, s.Findings = true, nil
	},
	"a webhook of another account was refused": func(s *story) { s.Forgeries[1].Status = 401 },
	"a shipment was never committed": func(s *story) {
		s.ask(history.Attempt{Kind: "shipment", Key: "unsent", Reference: "S3", Lost: "timeout"})
	},
}
