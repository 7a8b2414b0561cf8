package mutant

// upper are mistakes of what is built on the stores.
var upper = []Mutant{
	{
		Name: "intended-again", Layer: "phase", Store: sqlite, Breaks: []string{"I1"},
		Mistake: "a step that was meant to be done is done, no matter which attempt meant it",
		Edits: []Edit{{
			"phase/attempt_step.go", "\tif a.state.Intent == s.name {\n",
			"\tif a.state.Intent == s.name && s.repeat {\n",
		}},
	},
	{
		Name: "call-without-intent", Layer: "phase", Store: sqlite, Breaks: []string{"E3"},
		Test:    Test{"github.com/onceward/onceward/phase", "TestNoCallWithoutAnIntent"},
		Mistake: "a call is made although its intent could not be stored",
		Edits: []Edit{{
			"phase/attempt_step.go", "\tif err := a.record(intended); err != nil {\n\t\treturn a.localFailed(err)\n\t}\n",
			"\t_ = a.record(intended)\n",
		}},
	},
	{
		Name: "call-past-lease", Layer: "phase", Store: sqlite, Breaks: []string{"S5"},
		Test:    Test{"github.com/onceward/onceward/phase", "TestNoCallPastTheLease"},
		Mistake: "a call is made after the end of the lease by the own clock",
		Edits: []Edit{{
			"phase/attempt.go", "\tif err := a.op.CheckLease(); err != nil {\n\t\treturn err\n\t}\n", "",
		}},
	},
	{
		Name: "star-shares-operation", Layer: "mcp", Store: sqlite, Breaks: []string{"F1"},
		Test:    Test{"github.com/onceward/onceward/lab/feature/routers", "TestMCP/others/SharedName"},
		Mistake: "all tools that are protected under a star are one operation",
		Edits: []Edit{
			{"adapter/mcp/call.go", "operation(req.Params.Name))\n", "operation(OtherTools))\n"},
			{"adapter/mcp/call.go", "Operation: name, Method: req.Params.Name}", "Operation: name}"},
		},
	},
	{
		Name: "setters-keep-views", Layer: "engine", Store: sqlite, Breaks: []string{"E7"},
		Test:    Test{"github.com/onceward/onceward/lab/feature/routers", "TestFiber/ReusedMemory"},
		Mistake: "what a handler says of its operation is kept in the memory of its request",
		Edits: []Edit{
			{"operation.go", "\t\tid = strings.Clone(id)\n", ""},
			{"operation.go", "\t\treason = cutReason(reason)\n", "\t\t_ = strings.Clone\n"},
		},
	},
	{
		Name: "method-ignored", Layer: "fingerprint", Store: sqlite, Breaks: []string{"F1"},
		Test:    Test{"github.com/onceward/onceward/lab/feature/routers", "TestGRPC/SharedName"},
		Mistake: "two methods of gRPC under one name are one operation",
		Edits:   []Edit{{"fingerprint.go", "\te.field(c.Method)\n", ""}},
	},
	{
		Name: "done-again", Layer: "phase", Store: sqlite, Breaks: []string{"I1", "I15"},
		Mistake: "who takes over begins with the last step that was done",
		Edits: []Edit{{
			"phase/attempt.go",
			"\tfor i := len(a.state.Done); i < len(a.Steps) && err == nil; i++ {",
			"\tif n := len(a.state.Done); n > 0 && a.op.Resumed() {\n\t\ta.state.Done = a.state.Done[:n-1]\n\t}\n" +
				"\tfor i := len(a.state.Done); i < len(a.Steps) && err == nil; i++ {",
		}},
	},
	{
		Name: "settled-is-over", Layer: "phase", Store: sqlite, Breaks: []string{"I15"}, Quiet: true,
		Mistake: "steps behind one that was settled are not done",
		Edits: []Edit{{
			"phase/progress.go",
			"\t\treturn next.finished(p.Step, data).naming(p.Step, o.ProviderID), nil",
			"\t\tdone := next.finished(p.Step, data)\n\t\tdone.Done = append([]string(nil), done.Steps...)\n" +
				"\t\treturn done, nil",
		}},
	},
	{
		Name: "stale-resolution", Layer: "reconcile", Store: postgres, Breaks: []string{"I6"},
		Mistake: "what was learned about one attempt settles another",
		Edits: []Edit{{
			"store/step.go",
			"\tif rec.Attempt != ev.Attempt || rec.State != StateUnknown && !lost {",
			"\tif rec.State != StateUnknown && !lost {",
		}},
		Faults: calm,
	},
	{
		Name: "not-found-believed", Layer: "reconcile", Store: sqlite, Breaks: []string{"I1"},
		Mistake: "what a provider does not know of was never sent",
		Edits: []Edit{{
			"reconcile/rule.go",
			"\tif r.Arrival <= 0 || r.OwnerGone == nil {",
			"\tif r.OwnerGone != nil {\n\t\treturn NotExecuted(\"it is not there\"), nil\n\t}\n" +
				"\tif r.Arrival <= 0 || r.OwnerGone == nil {",
		}},
	},
	{
		Name: "unsigned-webhook", Layer: "webhook", Store: sqlite, Breaks: []string{"I2"},
		Mistake: "the signature is not looked at",
		Edits: []Edit{{
			"reconcile/webhook/receiver.go",
			"\t\terr = scheme.Verify(r.Header, body, rc.config.Now())\n",
			"\t\t_ = scheme.Verify(r.Header, body, rc.config.Now())\n",
		}},
	},
	{
		Name: "foreign-webhook", Layer: "webhook", Store: sqlite, Breaks: []string{"I2"},
		Mistake: "a tenant's signature counts for all tenants",
		Edits: []Edit{{
			"reconcile/webhook/event.go", "\tcase s.kind == scopeOne:\n\t\treturn s.name, false, nil",
			"\tcase s.kind == scopeOne:\n\t\treturn \"\", true, nil",
		}},
	},
	{
		Name: "ledger-blind", Layer: "ledger", Store: sqlite, Breaks: []string{"I5"}, Quiet: true,
		Mistake: "what only the provider has is not reported",
		Edits: []Edit{{
			"reconcile/ledger/compare.go",
			"\t\terr = m.oneSided(Finding{Kind: KindMissingHere, Side: SideProvider, Key: key, Provider: provider}, " +
				"provider.At)",
			"\t\tm.counts.Matched++",
		}},
		Faults: []string{"stray-effect", "server-kill", "worker-pause"},
	},
	{
		Name: "node-clock-windows", Layer: "ledger", Store: sqlite, Breaks: []string{"I5"}, Quiet: true,
		Mistake: "windows end by the clock of the node that compares them",
		Edits: []Edit{{
			"reconcile/ledger/turn.go", "\treturn v.Now.UTC(), nil",
			"\treturn time.Now().UTC(), nil",
		}},
		// The clocks of all nodes are ahead. Were they behind, it would never be quiet, and that shows too little.
		Faults: []string{"stray-effect", "server-kill"},
	},
	{
		Name: "failed-is-done", Layer: "outbox", Store: sqlite, Breaks: []string{"I10"}, Quiet: true,
		Mistake: "a message whose delivery failed counts as delivered",
		Edits: []Edit{{
			"outbox/worker_deliver.go",
			"\tend.outcome = Outcome{Lease: end.lease.Lease, State: StateReady, Attempts: end.attempts, ",
			"\tend.outcome = Outcome{Lease: end.lease.Lease, State: StateDone, Attempts: end.attempts, ",
		}},
	},
	{
		Name: "inbox-apart", Layer: "inbox", Store: sqlite, Breaks: []string{"I10"}, Quiet: true,
		Mistake: "an event is remembered apart from its work",
		Edits: []Edit{{
			"inbox/inbox.go",
			"\t\tapplied = true\n\t\treturn fn(ctx)\n\t})\n",
			"\t\tapplied = true\n\t\treturn nil\n\t})\n\tif applied && err == nil {\n" +
				"\t\terr = b.store.InTx(ctx, fn)\n\t}\n",
		}},
	},
	{
		Name: "inbox-forgets", Layer: "inbox", Store: sqlite, Breaks: []string{"I10"},
		Mistake: "an event that came before is applied again",
		Edits: []Edit{{
			"inbox/inbox.go",
			"\t\tfirst, err := b.store.RememberEvent(ctx, onceward.Tx(ctx), consumer, eventID)\n" +
				"\t\tif err != nil || !first {",
			"\t\tfirst, err := b.store.RememberEvent(ctx, onceward.Tx(ctx), consumer, eventID)\n" +
				"\t\tif err != nil || first && !first {",
		}},
	},
	{
		Name: "caller-new-key", Layer: "client", Store: sqlite, Breaks: []string{"I1", "I2"},
		Mistake: "a caller sends an operation again under another key",
		Edits: []Edit{{
			"outbox/httpcall/deliver.go", "client.WithKey(ctx, d.DownstreamKey)", "client.WithKey(ctx, client.NewKey())",
		}},
		Faults: []string{"caller-kill", "reply-cut", "server-kill"},
	},
	{
		Name: "caller-not-told", Layer: "client", Store: sqlite, Breaks: []string{"I18"}, Quiet: true,
		Mistake: "an operation counts as told before the caller was told",
		Edits: []Edit{{
			"outbox/httpcall/deliver.go", "return outbox.Result{Then: c.report(o)}, nil", "return outbox.Result{}, nil",
		}},
		Faults: []string{"caller-kill"},
	},
	{
		Name: "never-taken-up", Layer: "client", Store: sqlite, Breaks: []string{"I13"},
		Mistake: "what a caller was at when it was killed is never taken up again",
		Edits: []Edit{{
			"store/sqlite/outbox_claim.go", "until: micros(now.Add(max(lease, time.Microsecond)))",
			"until: micros(now.Add(max(lease, time.Hour)))",
		}, {
			"store/sqlite/outbox_finish.go", "micros(now.Add(lease))", "micros(now.Add(lease + time.Hour))",
		}},
		Faults: []string{"caller-kill"},
	},
	{
		Name: "caller-window", Layer: "client", Store: sqlite, Breaks: []string{"I18"},
		Test:    Test{"github.com/onceward/onceward/lab/feature/callers", "TestWindowIsOver"},
		Mistake: "an operation of a caller is sent again after its key may have been forgotten",
		Edits: []Edit{{
			"outbox/httpcall/deliver.go", "time.Now().Add(-now.Sub(r.firstSent))", "time.Now().Add(0 * now.Sub(r.firstSent))",
		}},
	},
	{
		Name: "caller-sent-before-kept", Layer: "client", Store: sqlite, Breaks: []string{"I18"},
		Test:    Test{"github.com/onceward/onceward/lab/feature/callers", "TestNothingIsSentThatIsNotKept"},
		Mistake: "an operation of a caller is sent although it could not be kept when it was first sent",
		Edits: []Edit{{
			"outbox/httpcall/deliver.go", "\t\tif err := keep(ctx, d, r); err != nil {\n\t\t\treturn err\n\t\t}\n",
			"\t\t_ = keep(ctx, d, r)\n",
		}},
	},
	{
		Name: "dead-without-then", Layer: "outbox", Store: sqlite, Breaks: []string{"O3"},
		Test:    Test{"github.com/onceward/onceward/lab/feature/outbox", "TestThenOfADeadLetter"},
		Mistake: "a message becomes a dead letter without the transaction that its handler asked for",
		Edits: []Edit{{
			"outbox/worker_deliver.go", "errors.Is(err, ErrPermanent) && result.Then != nil:",
			"errors.Is(err, ErrPermanent) && result.Then != nil && end.route == nil:",
		}},
	},
	{
		Name: "limit-counts-replays", Layer: "limit", Store: redis, Breaks: []string{"A6"},
		Test:    Test{"github.com/onceward/onceward/lab/feature/stores", "TestReplaysAreFree"},
		Mistake: "a replay uses up what a scope may have of new keys",
		Edits:   []Edit{{"limiter.go", "\tif !made {\n\t\te.returnKey(false)\n\t}\n", "\t_ = made\n"}},
	},
	{
		Name: "no-audit", Layer: "audit", Store: sqlite, Breaks: []string{"I16"},
		Mistake: "acts are done without a word in the audit",
		Edits: []Edit{{
			"reconcile/operator.go", "\tif auditor == nil {\n\t\treturn act()",
			"\tif auditor != nil {\n\t\treturn act()",
		}},
	},
	{
		Name: "audit-lies", Layer: "audit", Store: sqlite, Breaks: []string{"I16"},
		Mistake: "the audit says of each act that it was done",
		Edits: []Edit{{
			"reconcile/operator.go", "\t\te.Outcome = \"failed: \" + err.Error()",
			"\t\te.Outcome = \"done\"",
		}},
	},
}
