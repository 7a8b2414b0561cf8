package mutant

// stores are mistakes of single statements.
var stores = []Mutant{
	{
		Name: "token-reuse", Layer: "sqlite", Store: sqlite, Breaks: []string{"I6"},
		Mistake: "a record that is made again begins with the token of the one before",
		Edits:   []Edit{{"store/sqlite/row.go", "\treturn store.NewToken(now, max(r.removed, before.Attempt)), nil", "\treturn 1, nil"}},
		Faults:  calm, // answers expire when the clock leaps
	},
	{
		Name: "finish-unfenced", Layer: "sqlite", Store: sqlite, Breaks: []string{"I6"},
		Mistake: "a worker finishes a message that another one has",
		Edits: []Edit{{
			"store/sqlite/outbox_finish.go", "WHERE id = ?1 AND token = ?2 AND state = 1 RETURNING lane",
			"WHERE id = ?1 AND ?2 = ?2 RETURNING lane",
		}},
	},
	{
		Name: "order-ignored", Layer: "sqlite", Store: sqlite, Breaks: []string{"I10"},
		Mistake: "a message is taken before an earlier one about the same thing",
		Edits: []Edit{{
			"store/sqlite/outbox_claim.go", "\t\tif blocked || i >= len(front) || front[i].number != next.number {",
			"\t\tif blocked || len(front) < 0 || i < 0 {",
		}},
	},
	{
		Name: "complete-unfenced", Layer: "postgres", Store: postgres, Breaks: []string{"S6"},
		Test:    Test{"github.com/onceward/onceward/store/postgres", "TestStore/conformance/Crowds/complete"},
		Mistake: "in a batch, an answer is stored no matter which attempt owns the record",
		Edits: []Edit{
			{
				"store/postgres/batch_item.go",
				"AS u (id, attempt, retention, status, not_stored, content_type, header, body, provider_id)\n" +
					"\t\tCROSS JOIN LATERAL (SELECT FROM @record r WHERE r.id = u.id AND r.attempt = u.attempt AND",
				"AS u (id, attempt, retention, status, not_stored, content_type, header, body, provider_id)\n" +
					"\t\tCROSS JOIN LATERAL (SELECT FROM @record r WHERE r.id = u.id AND",
			},
			{
				"store/postgres/batch_item.go",
				"excluded.due + greatest(r.retention, excluded.retention)\n\t\tWHERE r.attempt = excluded.attempt AND",
				"excluded.due + greatest(r.retention, excluded.retention)\n\t\tWHERE",
			},
		},
	},
	{
		Name: "retaken-at-will", Layer: "postgres", Store: postgres, Breaks: []string{"I1", "I6"},
		Mistake: "a reservation takes over what is in progress",
		Edits: []Edit{
			{
				"store/postgres/batch_item.go", "WHERE NOT EXISTS (SELECT FROM s)\n\t\t\tON CONFLICT (id) DO NOTHING",
				"WHERE NOT EXISTS (SELECT FROM s WHERE state <> 10)\n" +
					"\t\t\tON CONFLICT (id) DO UPDATE SET attempt = excluded.attempt, nonce = excluded.nonce",
			},
			{"store/postgres/batch_item.go", "columns + ` FROM s`,\n", "columns + ` FROM s WHERE state <> 10`,\n"},
		},
	},
	{
		Name: "finish-unfenced-sql", Layer: "postgres", Store: postgres, Breaks: []string{"I6"},
		Mistake: "a worker finishes a message that another one has",
		Edits: []Edit{{
			"store/postgres/migrations/00001_tables.sql", "WHERE o.id = u.id AND o.token = u.token AND o.state + 0 = 1",
			"WHERE o.id = u.id",
		}},
		Faults: calm,
	},
	{
		Name: "order-ignored-sql", Layer: "postgres", Store: postgres, Breaks: []string{"I10"}, Quiet: true,
		Mistake: "a message is taken before an earlier one about the same thing",
		Edits: []Edit{{
			"store/postgres/migrations/00001_tables.sql", "coalesce(c.number > b.number, false) AS waits",
			"false AS waits",
		}},
		Faults: calm,
	},
	{
		Name: "promoted-too-soon", Layer: "postgres", Store: postgres, Breaks: []string{"O2"},
		Test:    Test{"github.com/onceward/onceward/store/postgres", "TestClaimedWhilePromoted"},
		Mistake: "a message is taken with its promotion before an earlier one about the same thing, which is not",
		Edits: []Edit{{
			"store/postgres/outbox_promote.go", "j.free AND (j.lane = 0 OR bool_and(j.free) OVER lane) AS claimed",
			"j.free AS claimed",
		}},
	},
	{
		Name: "answer-for-identity", Layer: "postgres", Store: postgres, Breaks: []string{"S6"},
		Test:    Test{"github.com/onceward/onceward/store/postgres", "TestStore/conformance/LostCommit"},
		Mistake: "an answer that says the same as one's own is taken for one's own commit",
		Edits: []Edit{{
			"store/postgres/tx_transact.go",
			"\town := became == fateCommitted && rec.Attempt == x.settled.Attempt &&",
			"\town := rec.State == store.StateCompleted &&",
		}},
	},
	{
		Name: "missing-for-undone", Layer: "postgres", Store: postgres, Breaks: []string{"S6"},
		Test:    Test{"github.com/onceward/onceward/store/postgres", "TestStore/conformance/LostCommit"},
		Mistake: "a record that is missing after a COMMIT counts as a COMMIT that failed",
		Edits: []Edit{{
			"store/postgres/tx_transact.go",
			"\tcase became != fateUndone:",
			"\tcase rec.State != store.StateNone && became != fateUndone:",
		}},
	},
	{
		Name: "blind-commit", Layer: "postgres", Store: postgres, Breaks: []string{"I1", "I2"},
		Mistake: "a transaction whose COMMIT was not answered is run again",
		Edits: []Edit{
			{
				"store/postgres/tx_commit.go",
				"\t\terr = t.resolve(err)\n",
				"\t\tif t.flight == nil {\n\t\t\treturn t.resolve(err)\n\t\t}\n" +
					"\t\tt.close()\n\t\terr = &sqltx.UndoneError{Cause: err}\n",
			},
			{
				"store/postgres/tx_transact.go",
				"\terr = s.retry(ctx, true, func(ctx context.Context) error {\n",
				"\tagain := false\n\terr = s.retry(ctx, true, func(ctx context.Context) error {\n",
			},
			{
				"store/postgres/tx_transact.go",
				"\t\terr := x.try(ctx)\n",
				"\t\tx.again, again = again, true\n\t\terr := x.try(ctx)\n",
			},
			{"store/postgres/tx_transact.go", "\texecuted   bool\n", "\tagain      bool\n\texecuted   bool\n"},
			{
				"store/postgres/tx_transact.go",
				"\treturn outcome.Decision == store.DecisionExecute, nil\n",
				`	if x.again && outcome.Decision == store.DecisionReplay {
		x.granted, _, _ = store.Step(store.Record{}, event, x.now)
		x.verdict = store.Verdict{Decision: store.DecisionExecute, Origin: store.OriginCreated, Record: x.granted, Now: x.now}
		return true, nil
	}
	return outcome.Decision == store.DecisionExecute, nil
`,
			},
		},
		Faults: []string{"commit-reply-cut", "server-kill"},
	},
}

// calm are faults that leave the database alone: what needs several parts to meet does so more often then.
var calm = []string{"server-kill", "server-pause", "worker-kill", "worker-pause", "clock-leap"}
