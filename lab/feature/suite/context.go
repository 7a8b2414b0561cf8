package suite

import (
	"context"
	"net/http"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/outbox"
)

// testOwnContext: where a framework's own context is a context.Context, it has the operation and the transaction, as the
// context of the request has, and two messages that are added with it have a downstream key each (rule O3).
func testOwnContext(s *service) {
	s.adapter.Serve = s.adapter.OwnContext
	box, err := outbox.New(s.store, outbox.Config{})
	s.must(err)
	message := outbox.Message{
		Topic: "mail", AggregateType: "payment", AggregateID: "a", Type: "paid", Payload: []byte(`{}`),
	}
	var downstream string
	s.serveWork(func(ctx context.Context, p Payment) Reply {
		op := onceward.FromContext(ctx)
		if op == nil {
			s.Error("the framework's own context has no operation")
			return Reply{Status: http.StatusInternalServerError}
		}
		downstream = op.DownstreamKey("charge")
		if p.Memo != "" {
			op.Reject()
			return Reply{Status: http.StatusUnprocessableEntity, Body: "rejected"}
		}
		for range 2 {
			if _, err := box.Add(ctx, onceward.Tx(ctx), message); err != nil {
				s.Errorf("adding a message with the framework's own context: %v", err)
			}
		}
		return s.pay(ctx, p)
	}, onceward.Transactional())
	rejected := keyed("k")
	rejected.Memo = "wrong"
	s.want("rejected", s.call(rejected), http.StatusUnprocessableEntity, false)
	first := s.want("corrected", s.call(keyed("k")), http.StatusCreated, false)
	s.wantSame("again", s.call(keyed("k")), first)
	s.wantPayments("one key", 1)
	added, err := s.store.Messages(s.Context(), outbox.Filter{})
	s.must(err)
	if len(added) != 2 || added[0].DownstreamKey == added[1].DownstreamKey {
		s.Errorf("O3: there are %d messages with one downstream key, want two messages with a key each", len(added))
	}
	if downstream == "" {
		s.Error("the operation of the framework's own context derives no downstream key")
	}
	s.wantQuiet()
}
