package load

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/onceward/onceward/lab/chaos/internal/history"
	"github.com/onceward/onceward/lab/chaos/internal/node"
	"github.com/onceward/onceward/store"
)

// Operator is a person who settles what no machine can. The page that the operator looks at is now and then an old
// one: then an act is about an attempt that has been settled since, and must not be done.
type Operator struct {
	load   *Load
	random *rand.Rand
	// unknown lists the records whose outcome is unknown.
	unknown func(ctx context.Context) ([]store.Record, error)
	// settled is the last attempt of each operation that the operator settled.
	settled map[store.ID]int64
	// asked is how often the operator had each operation looked into again.
	asked map[store.ID]int
}

// Operator returns the operator of these clients' operations.
func (l *Load) Operator(unknown func(ctx context.Context) ([]store.Record, error)) *Operator {
	return &Operator{
		load: l, random: rand.New(rand.NewPCG(l.Seed, 7)), unknown: unknown, settled: make(map[store.ID]int64),
		asked: make(map[store.ID]int),
	}
}

const (
	// operatorPause is the time between two looks of the operator.
	operatorPause = 100 * time.Millisecond
	// actLimit is how long an operator waits for an answer. There is more to do.
	actLimit = 1500 * time.Millisecond
	// mostAsked is how often an operation is looked into again: each time a phased one becomes unknown again, and
	// nothing is believed of its call before that has had the time to arrive.
	mostAsked = 3
)

// Run acts until the context ends.
func (o *Operator) Run(ctx context.Context) {
	for ctx.Err() == nil {
		if records, err := o.unknown(ctx); err == nil { // the store may be down, and comes back
			for i := range records {
				o.attend(ctx, &records[i])
			}
		}
		select {
		case <-time.After(operatorPause):
		case <-ctx.Done():
		}
	}
}

// attend looks after one record: it is settled if that is for a person to do, and asked after again now and then if
// not.
func (o *Operator) attend(ctx context.Context, rec *store.Record) {
	if !slices.Contains(node.ByHand, rec.Operation) {
		if o.asked[rec.ID] < mostAsked && o.random.Float64() < 0.02 {
			o.asked[rec.ID]++
			o.load.act(ctx, o.random, node.ActRetry, rec.ID, rec.Attempt)
		}
		return
	}
	if old, acted := o.settled[rec.ID]; acted && old != rec.Attempt {
		acts := []string{node.ActNotExecuted, node.ActCompleted, node.ActRetry}
		o.load.act(ctx, o.random, acts[o.random.IntN(len(acts))], rec.ID, old)
	}
	if o.load.act(ctx, o.random, node.ActNotExecuted, rec.ID, rec.Attempt) {
		o.settled[rec.ID] = rec.Attempt
	}
}

// bust has the answer of an operation removed that clients know, and sends it again: the old answer must be gone. It
// may execute again, because it has no effect.
func (l *Load) bust(ctx context.Context, random *rand.Rand, op *operation) {
	l.round(ctx, random, op) // who looks at it again may keep it
	if l.act(ctx, random, node.ActBust, store.ID{Scope: op.scope(), Key: op.key}, 0) {
		l.round(ctx, random, op)
	}
}

// act is an act of an operator. It records what came of it, and reports whether it was done.
func (l *Load) act(ctx context.Context, random *rand.Rand, action string, id store.ID, attempt int64) bool {
	a := history.Act{
		Scope: id.Scope, Key: id.Key, Attempt: attempt, Action: action,
		Why: fmt.Sprintf("act %d of seed %d", l.acts.Add(1), l.Seed),
	}
	front := l.Fronts[random.IntN(len(l.Fronts))]
	status, said := l.ask(ctx, front+node.OperatorPath, node.Act{
		Action: action, Scope: a.Scope, Key: a.Key, Attempt: attempt, Who: "olga",
		Why: a.Why, Past: action == node.ActBust && random.IntN(3) == 0,
	})
	a.Answered, a.Done, a.Err = status != 0, status == http.StatusNoContent, said
	l.keep(l.Recorder.AddAct(a))
	return a.Done
}

// ask asks a server to do it. The status is 0 if there was no answer.
func (l *Load) ask(ctx context.Context, url string, act node.Act) (status int, said string) {
	body, err := json.Marshal(act)
	if err != nil {
		panic(err) // strings and numbers can always be encoded
	}
	// An act that was begun is seen to its end also when the run ends, because its answer counts.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), actLimit)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return 0, err.Error()
	}
	response, err := l.http.Do(request)
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, err.Error() // a part of an answer is none
	}
	return response.StatusCode, strings.TrimSpace(string(text))
}
