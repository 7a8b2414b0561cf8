package check

import (
	"fmt"
	"slices"

	"github.com/onceward/onceward/lab/chaos/internal/history"
)

// world is a small system that keeps every promise, unless it was told to break one, with clients that have no luck.
// What happens next is drawn: whose turn it is, whose answer is lost, who dies.
type world struct {
	story
	draw func(n int) int
	bug  bug
	keys []*worldKey
	busy []*request
}

// bug is a promise that the world breaks.
type bug uint8

const (
	noBug bug = iota
	// noFence accepts the writes of owners that were replaced.
	noFence
	// noIntent lets a retry execute again after the owner was lost, without asking what became of the effect.
	noIntent
	// earlyReap deletes records that are not settled.
	earlyReap
	// blindRetry runs a transaction again whose commit was not acknowledged.
	blindRetry
	// noFingerprint takes any payload for the first one.
	noFingerprint
	// repeatedStep lets a booking that is resumed take its place once more.
	repeatedStep
)

// worldKey is one operation in the world.
type worldKey struct {
	name, kind string
	refuses    bool
	// record is nil if there is none.
	record *worldRecord
	token  int64
	// pending are the outbox messages that are not delivered, by their index.
	pending []int
	// running counts the transactions in flight.
	running int
}

type worldRecord struct {
	state   string
	payload string
	token   int64
	answer  answer
}

// answer is what a client gets.
type answer struct {
	status     int
	code, body string
}

// stage is how far a request has come.
type stage uint8

const (
	sent stage = iota
	granted
	acted
	answerReady
)

// request is an attempt under way.
type request struct {
	key     *worldKey
	attempt int
	payload string
	stage   stage
	token   int64
	answer  answer
	// abandoned says that the client has stopped waiting.
	abandoned bool
	// resumed says that another owner was at work before, and may still be.
	resumed bool
}

func newWorld(draw func(n int) int, bug bug) *world {
	w := &world{story: story{Run: &history.Run{Stock: stock()}}, draw: draw, bug: bug}
	for i, kind := range []string{"payment", "booking", "refund", "transfer"} {
		w.keys = append(w.keys, &worldKey{name: fmt.Sprint("key-", i), kind: kind, refuses: w.rarely(4)})
	}
	return w
}

// rarely is true once in n times. The simplest draw is that all goes well, so that everything ends.
func (w *world) rarely(n int) bool { return w.draw(n) == n-1 }

// step lets one thing happen.
func (w *world) step() {
	k := w.keys[w.draw(len(w.keys))]
	switch choice := w.draw(20); {
	case choice < 6 || len(w.busy) == 0:
		w.send(k)
	case choice < 15:
		w.advance(w.busy[w.draw(len(w.busy))])
	case choice < 16:
		w.busy[w.draw(len(w.busy))].abandoned = true
	case choice < 17:
		w.die(w.busy[w.draw(len(w.busy))])
	case choice < 18:
		w.sweep(k)
	case choice < 19:
		w.reconcile(k)
	default:
		w.deliver(k)
	}
}

// quiet ends what is under way and settles the rest.
func (w *world) quiet() {
	w.drain()
	for _, k := range w.keys {
		w.sweep(k)
		w.drain()
		w.reconcile(k)
		for len(k.pending) > 0 {
			w.deliver(k)
		}
		if r := k.record; r != nil {
			stored := w.record(k.name, r.state, r.token, r.answer.body)
			stored.Status, stored.Body = r.answer.status, r.answer.body
		}
	}
}

// drain lets everything under way come to its end.
func (w *world) drain() {
	for len(w.busy) > 0 {
		w.advance(w.busy[0])
	}
}

func (w *world) send(k *worldKey) {
	payload := k.name + "-p"
	if w.rarely(5) {
		payload = k.name + "-q"
	}
	w.Attempts = append(w.Attempts, history.Attempt{
		Scope: "s", Key: k.name, Kind: k.kind, Payload: payload, Reference: payload, Amount: price, Sent: w.tick(),
		Lost: "timeout",
	})
	w.busy = append(w.busy, &request{key: k, attempt: len(w.Attempts) - 1, payload: payload})
}

// advance takes a request one stage further.
func (w *world) advance(r *request) {
	switch {
	case r.stage == answerReady:
		w.finish(r)
	case r.stage == sent && w.rarely(10):
		w.miss(r)
	case r.stage == sent:
		w.decide(r)
	case r.key.kind == "payment":
		w.commit(r)
	case r.stage == granted:
		w.act(r)
	default:
		w.settle(r)
	}
}

func (w *world) reply(r *request, a answer) { r.stage, r.answer = answerReady, a }

// finish hands the answer to the client, if it still waits.
func (w *world) finish(r *request) {
	w.forget(r)
	if r.abandoned {
		return
	}
	a := &w.Attempts[r.attempt]
	a.Returned, a.Lost = w.tick(), ""
	a.Status, a.Code, a.Body = r.answer.status, r.answer.code, r.answer.body
}

func (w *world) forget(r *request) {
	w.busy = slices.DeleteFunc(w.busy, func(b *request) bool { return b == r })
}

// die kills the process of a request at whatever stage it is.
func (w *world) die(r *request) {
	if r.stage != sent && r.stage != answerReady && r.key.kind == "payment" {
		r.key.running--
	}
	w.forget(r)
}

// decide is the reservation.
func (w *world) decide(r *request) {
	k := r.key
	switch rec := k.record; {
	case rec != nil && rec.payload != r.payload && w.bug != noFingerprint:
		w.reply(r, answer{status: 422, code: "mismatch"})
	case rec != nil && rec.state == "completed":
		w.reply(r, rec.answer)
	case rec != nil && rec.state == "unknown" && w.bug != noIntent:
		w.reply(r, answer{status: 409, code: "outcome-unknown"})
	case rec != nil && rec.state == "in_progress", k.running > 0:
		w.reply(r, answer{status: 409, code: "in-progress"})
	case k.kind == "payment":
		r.stage = granted
		k.running++
	default:
		w.grantTo(r)
	}
}

// miss is a reservation whose reply does not come. It may have arrived: no attempt takes the grant, and it is released.
func (w *world) miss(r *request) {
	k := r.key
	if k.record == nil && k.kind != "payment" && w.rarely(2) {
		k.token++
		k.record = &worldRecord{state: "failed_retryable", payload: r.payload, token: k.token}
		w.write(history.Write{Call: history.CallReserve, Key: k.name, Err: "reply lost"})
	}
	w.reply(r, answer{status: 503, code: "store-unavailable"})
}

func (w *world) grantTo(r *request) {
	k := r.key
	k.token++
	k.record = &worldRecord{state: "in_progress", payload: r.payload, token: k.token}
	r.stage, r.token = granted, k.token
	w.story.grant(k.name, k.token)
}

// execution is the application's answer of one execution: another one would get another.
func (w *world) execution(r *request) answer {
	if r.key.refuses {
		return answer{status: 402, body: fmt.Sprint("declined ", w.tick())}
	}
	return answer{status: 201, body: fmt.Sprintf(`{"id":%q,"account":"s","at":%d}`, r.payload, w.tick())}
}
