package model

import (
	"testing"

	"github.com/onceward/onceward/store"
)

// faults are what must have gone wrong at least once in the walk: a search in which nothing fails shows nothing.
var faults = []action{
	{requestNames[0], "crashes"},
	{requestNames[0], "reserves, the reply is lost"},
	{requestNames[0], "has its call executed, the reply is lost"},
	{requestNames[0], "completes, the reply is lost"},
	{requestNames[0], "repeats its completion"},
	{requestNames[0], "releases, the reply is lost"},
	{requestNames[0], "repeats its release"},
	{requestNames[0], "rejects, the reply is lost"},
	{requestNames[0], "repeats its reject"},
	{requestNames[0], "sends a heartbeat, the reply is lost"},
	{requestNames[0], "abandons"},
	{requestNames[0], "fails and rolls back"},
	{requestNames[0], "forgets what was released"},
	{requestNames[0], "crashes in its transaction"},
	{requestNames[0], "is noticed and rolled back"},
	{requestNames[0], "crashes during COMMIT"},
	{requestNames[0], "has its COMMIT lost"},
	{requestNames[0], "does not hear of its COMMIT"},
	{requestNames[0], "asks the store"},
	{"the clock", "steps back"},
	{"the sweeper", "sweeps"},
	{"the reaper", "reaps"},
	{"the reconciler", "asks a provider that is silent"},
	{"the reconciler", "writes completed, the reply is lost"},
	{"the reconciler", "writes not executed, the reply is lost"},
	{"the operator", "busts by force"},
	{"the operator", "requeues"},
	{"the operator", "keeps it for longer"},
	{"the operator", "ends it as completed"},
	{"the operator", "ends it as not executed"},
	{"the reconciler", "begins to ask and is gone"},
	{"the reconciler", "gives up after tries that were not heard of again"},
}

func checkFaults(t *testing.T, fired map[action]int) {
	t.Helper()
	for _, fault := range faults {
		if fired[fault] == 0 {
			t.Errorf("it never happened that %s", fault)
		}
	}
}

const (
	none       = store.StateNone
	inProgress = store.StateInProgress
	completed  = store.StateCompleted
	retryable  = store.StateRetryable
	unknown    = store.StateUnknown
	expired    = store.StateExpired

	execute    = store.DecisionExecute
	reserve    = store.EventReserve
	over, kept = true, false
)

// rows are those of the table in docs/state-machine.md, in its order, and the refusals that matter most.
var rows = []transition{
	{none, kept, reserve, execute, inProgress, false},
	{retryable, kept, reserve, execute, inProgress, false},
	{inProgress, kept, store.EventExtend, 0, inProgress, false},
	{inProgress, kept, store.EventCheckpoint, 0, inProgress, false},
	{inProgress, kept, store.EventComplete, 0, completed, false},
	{inProgress, kept, store.EventRelease, 0, retryable, false},
	{inProgress, kept, store.EventAbandon, 0, unknown, false},
	{inProgress, kept, store.EventReject, 0, expired, false},
	{inProgress, over, store.EventReject, 0, expired, false},
	{inProgress, over, reserve, store.DecisionUnknown, unknown, false},
	{inProgress, over, store.EventSweep, 0, unknown, false},
	{inProgress, over, reserve, execute, inProgress, false},
	{unknown, kept, store.EventComplete, 0, completed, false},
	{expired, kept, reserve, execute, inProgress, false},
	{completed, over, reserve, execute, inProgress, false},
	{retryable, over, reserve, execute, inProgress, false},
	{retryable, kept, reserve, store.DecisionMismatch, retryable, false},
	{unknown, kept, store.EventResolveCompleted, 0, completed, false},
	{unknown, kept, store.EventResolveNotExecuted, 0, retryable, false},
	{unknown, kept, store.EventResolveStep, 0, inProgress, false},
	{inProgress, over, store.EventResolveCompleted, 0, completed, false},
	{inProgress, over, store.EventResolveNotExecuted, 0, retryable, false},
	{unknown, kept, store.EventBeginReconcile, 0, unknown, false},
	{unknown, kept, store.EventPostpone, 0, unknown, false},
	{unknown, kept, store.EventRequeue, 0, unknown, false},
	{completed, over, store.EventReap, 0, none, false},
	{completed, over, store.EventReap, 0, expired, false},
	{retryable, over, store.EventReap, 0, none, false},
	{retryable, over, store.EventReap, 0, expired, false},
	{expired, over, store.EventReap, 0, none, false},
	{completed, kept, store.EventBust, 0, none, false},
	{retryable, kept, store.EventBust, 0, none, false},
	{expired, kept, store.EventBust, 0, none, false},
	{inProgress, kept, store.EventBust, 0, expired, false},
	{unknown, kept, store.EventBust, 0, expired, false},
	{completed, kept, store.EventRetain, 0, completed, false},
	{retryable, kept, store.EventRetain, 0, retryable, false},

	{inProgress, kept, reserve, execute, inProgress, false}, // repeated
	{inProgress, kept, reserve, store.DecisionInProgress, inProgress, false},
	{inProgress, kept, reserve, store.DecisionMismatch, inProgress, false},
	{unknown, kept, reserve, store.DecisionUnknown, unknown, false},
	{unknown, kept, reserve, store.DecisionMismatch, unknown, false},
	{completed, kept, reserve, store.DecisionReplay, completed, false},
	{completed, kept, reserve, store.DecisionMismatch, completed, false},
	{unknown, kept, store.EventReject, 0, unknown, true},
	{inProgress, kept, store.EventReject, 0, inProgress, true},
	{retryable, kept, store.EventReject, 0, expired, false},
	{retryable, kept, store.EventReject, 0, retryable, true}, // resolved
	{expired, kept, store.EventReject, 0, expired, false},    // repeated
	{expired, kept, store.EventReject, 0, expired, true},     // busted
	{none, kept, store.EventReject, 0, none, true},
	{unknown, kept, store.EventExtend, 0, unknown, true},
	{completed, kept, store.EventComplete, 0, completed, true},
	{completed, kept, store.EventComplete, 0, completed, false}, // repeated
	{inProgress, kept, store.EventComplete, 0, inProgress, true},
	{none, kept, store.EventComplete, 0, none, true},
	{expired, kept, store.EventComplete, 0, expired, true},
	{completed, kept, store.EventResolveCompleted, 0, completed, true},
	{completed, kept, store.EventResolveCompleted, 0, completed, false}, // repeated
	{inProgress, kept, store.EventBust, 0, inProgress, true},
	{inProgress, kept, store.EventRequeue, 0, inProgress, true},
	{completed, kept, store.EventRequeue, 0, completed, true},
	{retryable, kept, store.EventRequeue, 0, retryable, true},
	{expired, kept, store.EventRequeue, 0, expired, true},
	{inProgress, kept, store.EventRetain, 0, inProgress, true},
	{unknown, kept, store.EventRetain, 0, unknown, true},
}

func checkTable(t *testing.T, moved map[transition]int) {
	t.Helper()
	for _, row := range rows {
		if moved[row] == 0 {
			t.Errorf("the search never went from %s (over: %t) by %s to %s (decision %s, refused: %t)",
				row.from, row.over, row.event, row.to, row.decision, row.fenced)
		}
	}
}
