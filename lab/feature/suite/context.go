package suite

import (
	"context"
	"net/http"

	"github.com/onceward/onceward"
)

// testOwnContext: where a framework's own context is a context.Context, it has the operation and the transaction, as the
// context of the request has.
func testOwnContext(s *service) {
	s.adapter.Serve = s.adapter.OwnContext
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
		return s.pay(ctx, p)
	}, onceward.Transactional())
	rejected := keyed("k")
	rejected.Memo = "wrong"
	s.want("rejected", s.call(rejected), http.StatusUnprocessableEntity, false)
	first := s.want("corrected", s.call(keyed("k")), http.StatusCreated, false)
	s.wantSame("again", s.call(keyed("k")), first)
	s.wantPayments("one key", 1)
	if downstream == "" {
		s.Error("the operation of the framework's own context derives no downstream key")
	}
	s.wantQuiet()
}
