package model

import (
	"testing"

	"github.com/onceward/onceward"
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
	{requestNames[0], "sends a heartbeat, the reply is lost"},
	{requestNames[0], "abandons"},
	{requestNames[0], "fails and rolls back"},
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
	none       = onceward.StateNone
	inProgress = onceward.StateInProgress
	completed  = onceward.StateCompleted
	retryable  = onceward.StateRetryable
	unknown    = onceward.StateUnknown
	expired    = onceward.StateExpired

	execute    = onceward.DecisionExecute
	reserve    = onceward.EventReserve
	over, kept = true, false
)

// rows are those of the table in docs/spec.md, section 4, in its order, and the refusals that matter most.
var rows = []transition{
	{none, kept, reserve, execute, inProgress, false},
	{retryable, kept, reserve, execute, inProgress, false},
	{inProgress, kept, onceward.EventExtend, 0, inProgress, false},
	{inProgress, kept, onceward.EventCheckpoint, 0, inProgress, false},
	{inProgress, kept, onceward.EventComplete, 0, completed, false},
	{inProgress, kept, onceward.EventRelease, 0, retryable, false},
	{inProgress, kept, onceward.EventAbandon, 0, unknown, false},
	{inProgress, over, reserve, onceward.DecisionUnknown, unknown, false},
	{inProgress, over, onceward.EventSweep, 0, unknown, false},
	{inProgress, over, reserve, execute, inProgress, false},
	{unknown, kept, onceward.EventComplete, 0, completed, false},
	{expired, kept, reserve, execute, inProgress, false},
	{completed, over, reserve, execute, inProgress, false},
	{retryable, over, reserve, execute, inProgress, false},
	{retryable, kept, reserve, onceward.DecisionMismatch, retryable, false},
	{unknown, kept, onceward.EventResolveCompleted, 0, completed, false},
	{unknown, kept, onceward.EventResolveNotExecuted, 0, retryable, false},
	{unknown, kept, onceward.EventResolveStep, 0, inProgress, false},
	{inProgress, over, onceward.EventResolveCompleted, 0, completed, false},
	{inProgress, over, onceward.EventResolveNotExecuted, 0, retryable, false},
	{unknown, kept, onceward.EventBeginReconcile, 0, unknown, false},
	{unknown, kept, onceward.EventPostpone, 0, unknown, false},
	{unknown, kept, onceward.EventRequeue, 0, unknown, false},
	{completed, over, onceward.EventReap, 0, none, false},
	{completed, over, onceward.EventReap, 0, expired, false},
	{retryable, over, onceward.EventReap, 0, none, false},
	{retryable, over, onceward.EventReap, 0, expired, false},
	{expired, over, onceward.EventReap, 0, none, false},
	{completed, kept, onceward.EventBust, 0, none, false},
	{retryable, kept, onceward.EventBust, 0, none, false},
	{expired, kept, onceward.EventBust, 0, none, false},
	{inProgress, kept, onceward.EventBust, 0, expired, false},
	{unknown, kept, onceward.EventBust, 0, expired, false},

	{inProgress, kept, reserve, execute, inProgress, false}, // repeated
	{inProgress, kept, reserve, onceward.DecisionInProgress, inProgress, false},
	{inProgress, kept, reserve, onceward.DecisionMismatch, inProgress, false},
	{unknown, kept, reserve, onceward.DecisionUnknown, unknown, false},
	{unknown, kept, reserve, onceward.DecisionMismatch, unknown, false},
	{completed, kept, reserve, onceward.DecisionReplay, completed, false},
	{completed, kept, reserve, onceward.DecisionMismatch, completed, false},
	{unknown, kept, onceward.EventExtend, 0, unknown, true},
	{completed, kept, onceward.EventComplete, 0, completed, true},
	{completed, kept, onceward.EventComplete, 0, completed, false}, // repeated
	{inProgress, kept, onceward.EventComplete, 0, inProgress, true},
	{none, kept, onceward.EventComplete, 0, none, true},
	{expired, kept, onceward.EventComplete, 0, expired, true},
	{completed, kept, onceward.EventResolveCompleted, 0, completed, true},
	{completed, kept, onceward.EventResolveCompleted, 0, completed, false}, // repeated
	{inProgress, kept, onceward.EventBust, 0, inProgress, true},
	{inProgress, kept, onceward.EventRequeue, 0, inProgress, true},
	{completed, kept, onceward.EventRequeue, 0, completed, true},
	{retryable, kept, onceward.EventRequeue, 0, retryable, true},
	{expired, kept, onceward.EventRequeue, 0, expired, true},
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
