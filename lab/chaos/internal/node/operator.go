package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/reconcile"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

// OperatorPath is where operators act.
const OperatorPath = "/operator"

// The acts of an operator, in the words of the audit.
const (
	ActCompleted   = "resolve completed"
	ActNotExecuted = "resolve not executed"
	ActRetry       = "retry now"
	ActBust        = "bust"
)

// Act is what an operator asks for.
type Act struct {
	Action  string `json:"action"`
	Scope   string `json:"scope"`
	Key     string `json:"key"`
	Attempt int64  `json:"attempt"`
	// Past goes past the front, which then does not hear of it.
	Past bool   `json:"past,omitempty"`
	Who  string `json:"who"`
	Why  string `json:"why"`
}

// newOperator takes the acts of operators. It answers 204 to one that is done, and 409 with the reason to one that is
// not.
func newOperator(guard *onceward.Guard, s *journaled) (http.Handler, error) {
	operator, err := reconcile.NewOperator(guard, s)
	if err != nil {
		return nil, err
	}
	past := operator
	if s.past != nil {
		if past, err = reconcile.NewOperator(guard, s.past); err != nil {
			return nil, err
		}
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var act Act
		err := json.NewDecoder(r.Body).Decode(&act)
		if err == nil && act.Past {
			err = act.do(r, past)
		} else if err == nil {
			err = act.do(r, operator)
		}
		if err != nil && !errors.Is(err, store.ErrStale) {
			http.Error(w, err.Error(), http.StatusConflict)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	}), nil
}

func (a *Act) do(r *http.Request, operator *reconcile.Operator) error {
	by := reconcile.By{Who: a.Who, Why: a.Why}
	claim := store.Claim{ID: store.ID{Scope: a.Scope, Key: a.Key}, Attempt: a.Attempt}
	switch a.Action {
	case ActCompleted:
		answer := store.Response{Status: http.StatusCreated, Body: []byte(`"an operator said so"`)}
		return operator.ResolveCompleted(r.Context(), by, claim, store.Completion{Response: answer})
	case ActNotExecuted:
		return operator.ResolveNotExecuted(r.Context(), by, claim)
	case ActRetry:
		return operator.RetryNow(r.Context(), by, claim)
	case ActBust:
		return operator.Bust(r.Context(), by, claim.ID, false)
	default:
		return fmt.Errorf("no act is called %q", a.Action)
	}
}

// RefundKey is the key that a refund is made with at the provider: for forgers who have seen it there.
func RefundKey(ctx context.Context, id store.ID) (key string, err error) {
	guard, err := onceward.New(memory.New(), onceward.Config{Secret: []byte(fingerprintSecret)})
	if err != nil {
		return "", err
	}
	call := onceward.Call{Scope: id.Scope, Key: id.Key, Operation: "see the key"}
	_, err = guard.Do(ctx, call, func(ctx context.Context) ([]byte, error) {
		key = onceward.FromContext(ctx).DownstreamKey("refund")
		return nil, nil
	}, onceward.Reserved(onceward.FailureRetry))
	return key, err
}
