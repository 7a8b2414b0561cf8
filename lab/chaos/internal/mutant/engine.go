package mutant

// engine are mistakes of the state machine, the guard and the fingerprint.
var engine = []Mutant{
	{
		Name: "no-fence", Layer: "engine", Store: sqlite, Breaks: []string{"I6"},
		Mistake: "writes of an owner whose time is over are taken",
		Edits: []Edit{{
			"store/step.go",
			"func ownerWrites(rec Record, ev *Event, now time.Time) (Record, Transition, error) {\n" +
				"\tif rec.State == StateNone || rec.Attempt != ev.Attempt {",
			"func ownerWrites(rec Record, ev *Event, now time.Time) (Record, Transition, error) {\n" +
				"\tif rec.State == StateNone {",
		}},
	},
	{
		Name: "two-owners", Layer: "engine", Store: sqlite, Breaks: []string{"I1", "I6"},
		Mistake: "who meets an attempt in progress is granted it too",
		Edits: []Edit{{
			"store/step.go",
			"\tcase !rec.leaseOver(now):\n\t\treturn rec, Transition{Decision: DecisionInProgress}, nil",
			"\tcase !rec.leaseOver(now):\n\t\trec.Nonce = ev.Reservation.Nonce\n" +
				"\t\treturn rec, Transition{Effect: EffectWrite, Decision: DecisionExecute, Origin: OriginRepeated}, nil",
		}},
	},
	{
		Name: "lost-is-free", Layer: "engine", Store: sqlite, Breaks: []string{"I1"},
		Mistake: "what a lost owner began is executed again",
		Edits: []Edit{
			{
				"store/step.go",
				"\t\trec = lose(rec, now, leaseRanOut)\n" +
					"\t\treturn rec, Transition{Effect: EffectWrite, Decision: DecisionUnknown}, nil",
				"\t\treturn grant(rec, ev, now, OriginRetried)",
			},
			{"store/step.go", "\tif !rec.leaseOver(now) || rec.OnLost == LostResume {", "\tif true {"},
		},
		Faults: []string{"server-kill", "worker-kill"}, // most servers are up, and their owners stall
	},
	{
		Name: "no-intent", Layer: "engine", Store: sqlite, Breaks: []string{"I1"},
		Mistake: "that a call is about to be made is not written down",
		Edits: []Edit{{
			"execution_resume.go",
			"e.persist(\"checkpoint\", func(ctx context.Context) error {\n" +
				"\t\treturn e.guard.store.Checkpoint(ctx, e.claim(), p)\n\t})",
			"nil",
		}},
	},
	{
		Name: "unstored-answer", Layer: "engine", Store: sqlite, Breaks: []string{"I2", "I3"},
		Mistake: "an answer is sent although it could not be stored",
		Edits: []Edit{{
			"execution_settle.go",
			"\tif err != nil {\n\t\treturn e.notCompleted(err)\n\t}\n\treturn e.completed(expires)",
			"\treturn e.completed(expires)",
		}},
	},
	{
		Name: "no-heartbeat", Layer: "lease", Store: sqlite, Breaks: []string{"I6"},
		Mistake: "a heartbeat is taken and extends nothing",
		Edits: []Edit{{
			"store/step.go",
			"\t\trec.LeaseUntil = now.Add(ev.Lease.Truncate(ClockStep))\n\tcase EventCheckpoint:",
			"\tcase EventCheckpoint:",
		}},
	},
	{
		Name: "late-heartbeat", Layer: "lease", Store: sqlite, Breaks: []string{"S5"},
		Test:    Test{"github.com/onceward/onceward", "TestALeaseCountsFromItsHeartbeat"},
		Mistake: "a lease counts from the reply to its heartbeat",
		Edits:   []Edit{{"lease.go", "\t\tl.start = sent\n", "\t\tl.start = time.Now()\n"}},
	},
	{
		Name: "short-retention", Layer: "engine", Store: sqlite, Breaks: []string{"S2"},
		Test:    Test{"github.com/onceward/onceward/store/storetest", "TestMemory/conformance/Random"},
		Mistake: "a retry with a shorter retention makes the record expire sooner",
		Edits: []Edit{{
			"store/step.go", "\trec.Retention = max(rec.Retention, r.Retention.Truncate(ClockStep))",
			"\trec.Retention = r.Retention.Truncate(ClockStep)",
		}},
	},
	{
		Name: "foreign-replay", Layer: "engine", Store: sqlite, Breaks: []string{"I9"},
		Test:    Test{"github.com/onceward/onceward", "TestEveryReplayIsOfItsKey"},
		Mistake: "one replay in 500 has the answer to another key",
		Edits: []Edit{
			{"execution_attempt.go", "\t\"errors\"\n", "\t\"errors\"\n\t\"sync/atomic\"\n"},
			{
				"execution_attempt.go", "\tif v.Decision == store.DecisionReplay {\n\t\tres.kind",
				"\tif v.Decision == store.DecisionReplay {\n" +
					"\t\tif other := replayed.Swap(&res); other != nil && replays.Add(1)%500 == 0 {\n" +
					"\t\t\tres.record.Response = other.record.Response\n\t\t}\n\t\tres.kind",
			},
			{
				"execution_attempt.go", "// replayAge returns how long ago",
				"var (\n\treplays  atomic.Int64\n\treplayed atomic.Pointer[result]\n)\n\n// replayAge returns how long ago",
			},
		},
	},
	{
		Name: "amount-ignored", Layer: "fingerprint", Store: sqlite, Breaks: []string{"I2", "I3", "I8"},
		Mistake: "bodies that differ in the amount alone are taken for one",
		Edits: []Edit{
			{"fingerprint.go", "\t\"net/url\"\n", "\t\"net/url\"\n\t\"regexp\"\n"},
			{
				"fingerprint.go", "\tcanonical := extended[start:]\n",
				"\tcanonical := amounts.ReplaceAll(extended[start:], nil)\n",
			},
			{
				"fingerprint.go", "// jsonBody ends the message",
				"var amounts = regexp.MustCompile(`\"(amount|price|parcels)\":[0-9]+`)\n\n// jsonBody ends the message",
			},
		},
	},
}

// janitors are mistakes of those who clean up.
var janitors = []Mutant{
	{
		Name: "early-sweep", Layer: "sweeper", Store: sqlite, Breaks: []string{"I6"},
		Mistake: "attempts are given up while their lease lasts",
		Edits: []Edit{
			{
				"store/step.go", "\tif !rec.leaseOver(now) || rec.OnLost == LostResume {",
				"\tif rec.State != StateInProgress || rec.OnLost == LostResume {",
			},
			{
				"store/sqlite/background.go", "state, micros(b.now), b.limit",
				"state, micros(b.now.Add(time.Minute)), b.limit",
			},
		},
		Faults: []string{"server-kill", "worker-kill"}, // how long a lease lasts cannot be told when the clock is set
	},
	{
		Name: "early-reap", Layer: "reaper", Store: sqlite, Breaks: []string{"I1", "I12"},
		Mistake: "answers are removed before they expire",
		Edits: []Edit{
			{
				"store/step.go", "\tover := !now.Before(rec.ExpiresAt)\n",
				"\tover := !now.Add(2 * time.Hour).Before(rec.ExpiresAt)\n",
			},
			{
				"store/sqlite/background.go", "state, micros(b.now), b.limit",
				"state, micros(b.now.Add(2*time.Hour)), b.limit",
			},
		},
	},
	{
		Name: "open-reap", Layer: "reaper", Store: sqlite, Breaks: []string{"I1", "I12"},
		Mistake: "what is unknown is removed, to free its key",
		Edits: []Edit{
			{
				"store/step.go",
				"\tcase rec.State == StateExpired && over, rec.State.Settled() && over && !ev.Soft:",
				"\tcase rec.State == StateUnknown, rec.State == StateExpired && over, rec.State.Settled() && over && !ev.Soft:",
			},
			{
				"store/sqlite/background.go", "sqltx.CodeCompleted, sqltx.CodeRetryable, sqltx.CodeExpired)",
				"sqltx.CodeCompleted, sqltx.CodeRetryable, sqltx.CodeExpired, sqltx.CodeUnknown)",
			},
		},
	},
	{
		Name: "early-reap-sql", Layer: "postgres", Store: postgres, Breaks: []string{"I1", "I12"},
		Mistake: "the function that reaps runs two hours ahead",
		Edits: []Edit{{
			"store/postgres/migrations/00001_tables.sql",
			"\tnow_us bigint := onceward_now();\n\tplaces ",
			"\tnow_us bigint := onceward_now() + 7200000000;\n\tplaces ",
		}},
	},
	{
		Name: "lost-uncounted", Layer: "store", Store: sqlite, Breaks: []string{"B1"},
		Test:    Test{"github.com/onceward/onceward/store/sqlite", "TestStore/conformance/Lister/lost_owners"},
		Mistake: "lost owners of phased operations are not counted: nobody sees that no resumer runs",
		Edits: []Edit{{
			"store/sqlite/list.go", "min(due) FROM onceward_record WHERE state IN (?1, ?1 + 1) AND due <= ?2",
			"min(due) FROM onceward_record WHERE state = ?1 AND due <= ?2",
		}},
	},
}
