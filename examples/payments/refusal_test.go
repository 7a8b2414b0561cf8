package payments_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/onceward/onceward/examples/payments"
	"github.com/onceward/onceward/storeurl"
)

// refuser stands between the system and the provider, and refuses orders in the provider's own words.
type refuser struct {
	mu sync.Mutex
	// plan is what orders get, by path and reference, one after the other: a status, handOn or cutOff. The last one stays.
	// What is not planned is handed on.
	plan  map[string][]int
	calls map[string]int
}

const (
	handOn = 0
	// cutOff ends the connection without an answer, and nothing is handed on.
	cutOff = -1
)

// refusing makes a world with a plan of refusals.
func refusing(t *testing.T, kind string, plan map[string][]int, change func(*settings)) (*world, *refuser) {
	t.Helper()
	r := &refuser{plan: plan, calls: make(map[string]int)}
	w := newWorld(t, storeOf(t, kind), func(s *settings) {
		s.between = func(url string) string { return r.between(t, url) }
		s.Timing.Look = soon
		if change != nil {
			change(s)
		}
	})
	return w, r
}

// between implements settings.between.
func (r *refuser) between(t *testing.T, provider string) string {
	target, err := url.Parse(provider)
	must(t, err)
	proxy := httputil.NewSingleHostReverseProxy(target)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		switch status := r.next(request); status {
		case handOn:
			proxy.ServeHTTP(w, request)
		case cutOff:
			panic(http.ErrAbortHandler)
		default:
			w.WriteHeader(status)
			_, _ = io.WriteString(w, `{"error":{"code":"no","message":"not like this"}}`) // who is gone asks again
		}
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// next is what an order gets.
func (r *refuser) next(request *http.Request) int {
	body, _ := io.ReadAll(request.Body) // what is cut off the provider does not understand either
	request.Body = io.NopCloser(strings.NewReader(string(body)))
	var order struct{ Reference string }
	_ = json.Unmarshal(body, &order) // as above
	about := request.URL.Path + " " + order.Reference
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls[about]++
	planned := r.plan[about]
	if len(planned) == 0 {
		return handOn
	}
	if len(planned) > 1 {
		r.plan[about] = planned[1:]
	}
	return planned[0]
}

// wantCalls checks how often the provider was asked.
func (r *refuser) wantCalls(w *world, about string, want int) {
	w.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.calls[about] != want {
		w.Errorf("the provider was asked %d times for %s, want %d", r.calls[about], about, want)
	}
}

// onRefusals runs a test on each store, with each status.
func onRefusals(t *testing.T, statuses []int, test func(t *testing.T, kind string, status int)) {
	t.Helper()
	for _, kind := range []string{"sqlite", "postgres"} {
		for _, status := range statuses {
			t.Run(fmt.Sprint(kind, " ", status), func(t *testing.T) {
				t.Parallel()
				test(t, kind, status)
			})
		}
	}
}

// TestFinalRefusals: what the provider refuses for good is asked for once. A booking gives its place back and says why,
// a refund says why, and a charge is left to a person.
func TestFinalRefusals(t *testing.T) {
	t.Parallel()
	statuses := []int{http.StatusBadRequest, http.StatusNotFound, http.StatusUnprocessableEntity}
	onRefusals(t, statuses, func(t *testing.T, kind string, status int) {
		w, r := refusing(t, kind, map[string][]int{"/charges no": {status}, "/refunds back": {status}}, nil)
		p := w.payment(1900, "paid")

		places := w.places("theatre")
		first := w.post("/bookings", "b", place("theatre", 4500, "no")).want(http.StatusUnprocessableEntity, "not like this")
		if b := decode[booked](first); b.State != "refused" || b.Error == "" {
			t.Errorf("the booking is %+v, want it refused with a reason", b)
		}
		w.post("/bookings", "b", place("theatre", 4500, "no")).wantReplay(first)
		if n := w.places("theatre"); n != places {
			t.Errorf("there were %d places, and now there are %d: the place was not given back", places, n)
		}
		r.wantCalls(w, "/charges no", 1)

		first = w.refund(p, 500).want(http.StatusUnprocessableEntity, "not like this")
		w.refund(p, 500).wantReplay(first)
		r.wantCalls(w, "/refunds back", 1)

		unpaid := decode[payments.Payment](w.post("/payments", "k", order(1900, "no")).want(http.StatusCreated, ""))
		w.eventually("the dead letter", func() bool { return w.health().Messages.DeadLetters == 1 })
		r.wantCalls(w, "/charges no", 2)
		w.send(http.MethodGet, "/payments/"+unpaid.ID, alice, "", "").want(http.StatusOK, `"state":"pending"`)
		w.wantCharges("no", 0)
	})
}

// TestPassingRefusals: what the provider refuses for the moment is tried again, and succeeds.
func TestPassingRefusals(t *testing.T) {
	t.Parallel()
	statuses := []int{http.StatusUnauthorized, http.StatusRequestTimeout, http.StatusConflict, http.StatusTooEarly, http.StatusTooManyRequests}
	onRefusals(t, statuses, func(t *testing.T, kind string, status int) {
		soonOver := []int{status, handOn}
		w, _ := refusing(t, kind, map[string][]int{
			"/charges paid": soonOver, "/charges booked": soonOver, "/refunds back": soonOver,
		}, nil)
		p := w.payment(1900, "paid")
		w.refund(p, 500).want(http.StatusServiceUnavailable, "try again")
		w.wantOneRefund(p, w.refund(p, 500).want(http.StatusCreated, ""))
		w.eventually("the booking to be confirmed", func() bool {
			return w.post("/bookings", "b", place("concert", 4500, "booked")).status == http.StatusCreated
		})
		w.wantCharges("paid", 1)
		w.wantCharges("booked", 1)
	})
}

// TestRefusalAfterDoubt: the first call for a booking is lost, and its repetition is refused. That is the end of both,
// as the provider would have answered with the charge if the first had come through.
func TestRefusalAfterDoubt(t *testing.T) {
	t.Parallel()
	onRefusals(t, []int{http.StatusBadRequest}, func(t *testing.T, kind string, status int) {
		w, r := refusing(t, kind, map[string][]int{"/charges no": {cutOff, status}}, nil)
		places := w.places("theatre")
		body := place("theatre", 4500, "no")
		w.post("/bookings", "b", body).want(http.StatusConflict, "in-progress")
		w.eventually("the refusal", func() bool {
			return w.post("/bookings", "b", body).status == http.StatusUnprocessableEntity
		})
		if n := w.places("theatre"); n != places {
			t.Errorf("there were %d places, and now there are %d: the place was not given back", places, n)
		}
		r.wantCalls(w, "/charges no", 2)
	})
}

// TestRefusedBookingAfterExpiry: a request that comes again when its record is gone gets the answer that it had.
func TestRefusedBookingAfterExpiry(t *testing.T) {
	t.Parallel()
	onRefusals(t, []int{http.StatusBadRequest}, func(t *testing.T, kind string, status int) {
		clock := new(storeClock)
		w, r := refusing(t, kind, map[string][]int{"/charges no": {status}}, func(s *settings) {
			s.idle, s.store = true, append(s.store, storeurl.WithClock(clock.now))
		})
		places := w.places("theatre")
		first := w.post("/bookings", "b", place("theatre", 4500, "no")).want(http.StatusUnprocessableEntity, "not like this")
		clock.move(w, retention)
		w.reap(1)
		w.post("/bookings", "b", place("theatre", 4500, "no")).want(http.StatusUnprocessableEntity, first.body).wantFresh()
		if n := w.places("theatre"); n != places {
			t.Errorf("there were %d places, and now there are %d", places, n)
		}
		r.wantCalls(w, "/charges no", 1)
	})
}
