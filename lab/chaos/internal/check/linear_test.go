package check

import (
	"fmt"
	"testing"

	"github.com/anishathalye/porcupine"
	"pgregory.net/rapid"

	"github.com/onceward/onceward/lab/chaos/internal/history"
)

// seen is an attempt from one time to another, for the payload, with an answer: "A" and "B" are successes, "no" is a
// refusal, "lost" is none at all, "503" says that nothing was executed, "5xx" is the application's own failure and the
// rest are problem codes.
func seen(from, to int64, payload, answer string) *history.Attempt {
	a := &history.Attempt{Payload: payload, Sent: from, Returned: to}
	switch answer {
	case "A", "B":
		a.Status, a.Body = 201, answer
	case "no":
		a.Status, a.Body = 402, answer
	case "lost":
		a.Returned = 0
	case "503":
		a.Status, a.Code = 503, "store-unavailable"
	case "5xx":
		a.Status = 502
	case "became-unknown":
		a.Status, a.Code = 500, "outcome-unknown"
	default:
		a.Status, a.Code = 409, answer
	}
	return a
}

type attempts []*history.Attempt

var possible = map[string]attempts{
	"the answer of a request that was lost":     {seen(1, 0, "p", "lost"), seen(10, 11, "p", "A")},
	"in progress while the first is under way":  {seen(1, 100, "p", "A"), seen(2, 3, "p", "in-progress"), seen(4, 5, "p", "in-progress")},
	"finished by the resumer":                   {seen(1, 2, "p", "in-progress"), seen(10, 11, "p", "A")},
	"resolved after it was unknown":             {seen(1, 2, "p", "became-unknown"), seen(3, 4, "p", "outcome-unknown"), seen(5, 6, "p", "A")},
	"unknown, released, executed":               {seen(1, 2, "p", "outcome-unknown"), seen(3, 4, "p", "503"), seen(5, 6, "p", "A")},
	"a failing store after the answer":          {seen(1, 2, "p", "A"), seen(3, 4, "p", "503"), seen(5, 6, "q", "5xx"), seen(7, 8, "p", "A")},
	"a mismatch with one under way":             {seen(1, 100, "p", "A"), seen(2, 3, "q", "mismatch"), seen(4, 5, "p", "in-progress")},
	"a mismatch with one that was lost":         {seen(1, 0, "p", "lost"), seen(2, 3, "q", "mismatch")},
	"a mismatch with the first of two":          {seen(10, 0, "p", "lost"), seen(1, 0, "p", "lost"), seen(2, 3, "q", "mismatch")},
	"a mismatch with one that was released":     {seen(1, 2, "p", "503"), seen(3, 4, "q", "mismatch")},
	"a mismatch with a refusal":                 {seen(1, 2, "p", "no"), seen(3, 4, "q", "mismatch"), seen(5, 6, "p", "no")},
	"one of two at once":                        {seen(1, 100, "p", "A"), seen(1, 100, "q", "mismatch")},
	"a transaction in flight hides its payload": {seen(1, 2, "q", "in-progress"), seen(3, 4, "p", "A")},
	"undone, then another payload":              {seen(1, 0, "p", "lost"), seen(2, 3, "p", "became-unknown"), seen(4, 5, "q", "A")},
	"a reservation that landed after its 503":   {seen(1, 2, "p", "503"), seen(3, 4, "q", "in-progress"), seen(5, 6, "q", "mismatch")},
	"unknown to an owner that was replaced":     {seen(1, 100, "p", "became-unknown"), seen(2, 3, "p", "A")},
	"mismatches with one of two, not yet which": {
		seen(1, 0, "p", "lost"), seen(1, 0, "q", "lost"), seen(2, 3, "r", "mismatch"), seen(4, 5, "p", "mismatch"), seen(6, 7, "q", "A"),
	},
}

var impossible = map[string]attempts{
	"two answers":                            {seen(1, 2, "p", "A"), seen(3, 4, "p", "B")},
	"an answer for each payload":             {seen(1, 100, "p", "A"), seen(1, 100, "q", "A")},
	"in progress after the answer":           {seen(1, 2, "p", "A"), seen(3, 4, "p", "in-progress")},
	"in progress for another after it":       {seen(1, 2, "p", "no"), seen(3, 4, "q", "in-progress")},
	"unknown after the answer":               {seen(1, 2, "p", "A"), seen(3, 4, "p", "outcome-unknown")},
	"became unknown after the answer":        {seen(1, 2, "p", "A"), seen(3, 4, "p", "became-unknown")},
	"in progress after one of two answers":   {seen(1, 2, "p", "A"), seen(1, 100, "p", "A"), seen(50, 60, "p", "in-progress")},
	"unknown for two payloads":               {seen(1, 2, "p", "outcome-unknown"), seen(3, 4, "q", "outcome-unknown")},
	"unknown, then an answer to another":     {seen(1, 2, "p", "outcome-unknown"), seen(3, 4, "q", "A")},
	"a mismatch with nothing":                {seen(1, 2, "p", "mismatch")},
	"a mismatch with one that came later":    {seen(1, 2, "p", "mismatch"), seen(3, 4, "q", "A")},
	"mismatches with each other":             {seen(1, 2, "p", "mismatch"), seen(3, 4, "q", "mismatch")},
	"a mismatch with one that was rejected":  {seen(1, 2, "p", "invalid-request"), seen(3, 4, "q", "mismatch")},
	"a mismatch of the one that was settled": {seen(1, 2, "p", "A"), seen(1, 0, "q", "lost"), seen(3, 4, "p", "mismatch")},
	"mismatches with two by turns": {
		seen(1, 0, "p", "lost"), seen(1, 0, "q", "lost"), seen(2, 3, "p", "mismatch"), seen(4, 5, "q", "mismatch"),
	},
}

// linear reports whether the checker finds an order.
func linear(list attempts) bool {
	f := new(findings)
	checkLinear(&operation{attempts: list}, f)
	return len(f.violations) == 0
}

func TestPossibleHistoriesOfAKey(t *testing.T) {
	t.Parallel()
	for name, list := range possible {
		if !linear(list) {
			t.Errorf("%s: no order was found: %s", name, listAnswers(list))
		}
	}
}

func TestImpossibleHistoriesOfAKey(t *testing.T) {
	t.Parallel()
	for name, list := range impossible {
		if linear(list) {
			t.Errorf("%s: an order was found: %s", name, listAnswers(list))
		}
	}
}

// Joining what clients saw must not change the verdict: each attempt as a step of its own gives the same.
func TestJoinedStepsDecideTheSame(t *testing.T) {
	t.Parallel()
	verdicts := make(map[bool]int)
	rapid.Check(t, func(rt *rapid.T) {
		for _, list := range rapid.SliceOfN(anyAttempts, 1, 40).Draw(rt, "histories") {
			joined := linear(list)
			verdicts[joined]++
			if apart := porcupine.CheckOperations(keyModel, apartSteps(list)); apart != joined {
				rt.Fatalf("joined %t, apart %t: %s", joined, apart, listAnswers(list))
			}
		}
	})
	if verdicts[true] == 0 || verdicts[false] == 0 {
		t.Errorf("the histories were all of one sort: %v", verdicts)
	}
}

// anyAttempts draws the history of a key, possible or not.
var anyAttempts = rapid.Custom(func(rt *rapid.T) attempts {
	var list attempts
	for range rapid.IntRange(1, 7).Draw(rt, "attempts") {
		from := rapid.Int64Range(1, 20).Draw(rt, "from")
		to := from + rapid.Int64Range(0, 12).Draw(rt, "for")
		payload := rapid.SampledFrom([]string{"p", "p", "q", "r"}).Draw(rt, "payload")
		answer := rapid.SampledFrom([]string{
			"A", "A", "B", "no", "lost", "503", "mismatch", "in-progress", "outcome-unknown", "became-unknown", "invalid-key",
		}).Draw(rt, "answer")
		list = append(list, seen(from, to, payload, answer))
	}
	return list
})

// apartSteps makes the steps of each attempt without joining them with those of others.
func apartSteps(list attempts) []porcupine.Operation {
	var steps []porcupine.Operation
	numbers := &keyHistory{steps: make(map[step]span)}
	for _, a := range list {
		alone := &keyHistory{payloads: numbers.payloads, answers: numbers.answers, steps: make(map[step]span)}
		alone.add(a)
		numbers.payloads, numbers.answers = alone.payloads, alone.answers
		steps = append(steps, alone.operations()...)
	}
	return steps
}

func TestHotKeyIsDecided(t *testing.T) {
	t.Parallel()
	const n = 20_000
	list := attempts{seen(1, 3*n, "p", "A")}
	for i := range int64(n) {
		list = append(list,
			seen(2+i, 3*n+i, "p", "A"), seen(2+i, 4+i, "p", "in-progress"), seen(2+i, 3+i, "q", "mismatch"), seen(2+i, 0, "q", "lost"))
	}
	if !linear(list) {
		t.Error("a key that many used at once has no order")
	}
	if linear(append(list, seen(5*n, 5*n+1, "p", "in-progress"))) {
		t.Error("one wrong answer among many was not found")
	}
}

func TestTooManyPayloadsAreUndecided(t *testing.T) {
	t.Parallel()
	var list attempts
	for i := range mostPayloads + 1 {
		list = append(list, seen(1, 2, fmt.Sprint(i), "503"))
	}
	f := new(findings)
	checkLinear(&operation{attempts: list}, f)
	if got := invariants(f.violations); len(got) != 1 || got[0] != "I11 undecided" {
		t.Errorf("violations %v, want one that says undecided", f.violations)
	}
}
