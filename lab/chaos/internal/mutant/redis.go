package mutant

// caches are mistakes of stores that are, or have, a Redis.
var caches = []Mutant{
	{
		Name: "script-unfenced", Layer: "redis", Store: redis, Breaks: []string{"I3", "I6", "I7"},
		Mistake: "the script stores an answer no matter which attempt owns the record",
		Edits: []Edit{{
			"store/redis/script/batch.lua", "#old > 72 and old:find(first, 3, true) == 3 then",
			"#old > 72 then",
		}},
		Faults: nodesFail,
	},
	{
		Name: "release-frees-unknown", Layer: "redis", Store: redis, Breaks: []string{"S6"},
		Test:    Test{"github.com/onceward/onceward/store/redis", "TestStore/conformance/Crowds/release"},
		Mistake: "in a batch, a late release frees a record that is unknown",
		Edits: []Edit{{
			"store/redis/script/batch.lua",
			"if format == 2 and state == 1 and (flags < 8 or flags < 24 and flags >= 16 and op == 'complete') then",
			"if format == 2 and (state == 1 and (flags < 8 or flags < 24 and flags >= 16 and op == 'complete') or " +
				"state == 4 and op == 'release') then",
		}},
	},
	{
		Name: "stale-decision", Layer: "redis", Store: redis, Breaks: []string{"S3"},
		Test:    Test{"github.com/onceward/onceward/store/redis", "TestStaleDecision"},
		Mistake: "a decision is stored that was taken too long ago",
		Edits: []Edit{{
			"store/redis/script/swap.lua", " or now > tonumber(ARGV[2]) then", " then",
		}},
	},
	{
		Name: "open-expires", Layer: "redis", Store: redis, Breaks: []string{"I1", "I12"},
		Mistake: "the server removes what is in progress or unknown after two seconds, to free its key",
		Edits: []Edit{
			{
				"store/redis/script/batch.lua", "call('SETNX', key, '\\2\\1' .. pack('>I8', now + first) .. begin .. rest)",
				"call('SET', key, '\\2\\1' .. pack('>I8', now + first) .. begin .. rest, 'NX', 'PX', '2000') and 1 or 0",
			},
			{
				"store/redis/change.go", "\tcase store.StateInProgress, store.StateUnknown:\n\t\treturn 0\n",
				"\tcase store.StateInProgress, store.StateUnknown:\n\t\treturn 2000\n",
			},
		},
		Faults: nodesFail,
	},
	{
		Name: "front-unsettled", Layer: "tiered", Store: tiered, Breaks: []string{"I3", "I11"},
		Mistake: "the front answers for what is in progress, too",
		Edits: []Edit{
			{
				"store/tiered/front.go",
				"\tif v.Decision != store.DecisionReplay || begun.front.IsZero() || v.Now.IsZero() || left <= 0 {",
				"\tif left = max(left, s.config.MaxAge); begun.front.IsZero() || v.Now.IsZero() {",
			},
			{
				"store/tiered/front.go",
				"transition.Decision != store.DecisionReplay || rec.Response.Status == 0 {",
				"transition.Decision == store.DecisionExecute {",
			},
			{
				"store/tiered/front.go", "\treturn store.Verdict{Decision: store.DecisionReplay, Record: rec, Now: now}, true",
				"\treturn store.Verdict{Decision: transition.Decision, Record: rec, Now: now}, true",
			},
		},
		Faults: nodesFail,
	},
	{
		Name: "front-not-told", Layer: "tiered", Store: tiered, Breaks: []string{"I11"},
		Mistake: "the front does not hear of an answer that was removed",
		Edits: []Edit{{
			"store/tiered/invalidate.go", "\treturn s.changed(ctx, id, MaxMaxAge, s.Store.Bust(ctx, id, force))",
			"\treturn s.Store.Bust(ctx, id, force)",
		}},
		Faults: nodesFail,
	},
}

// nodesFail are faults that leave the servers of the store alone.
var nodesFail = []string{"server-kill", "server-pause", "worker-kill", "packets-slow"}
