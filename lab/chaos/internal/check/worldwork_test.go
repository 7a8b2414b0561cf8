package check

import (
	"fmt"

	"github.com/onceward/onceward/lab/chaos/internal/history"
)

// commit ends the transaction of a payment: with everything, with nothing, or without a word.
func (w *world) commit(r *request) {
	k := r.key
	k.running--
	landed, acknowledged := !w.rarely(4), !w.rarely(5)
	write := history.Write{Call: history.CallTransact, Key: k.name, Granted: true, Accepted: acknowledged && landed}
	if landed {
		k.token++
		k.record = &worldRecord{state: "completed", payload: r.payload, token: k.token, answer: w.execution(r)}
		w.pay(k, r.payload)
	}
	write.Attempt = k.token
	w.write(write)
	switch {
	case !acknowledged && w.bug == blindRetry:
		k.running++
	case !acknowledged:
		w.reply(r, answer{status: 500, code: "outcome-unknown"})
	case landed:
		w.reply(r, k.record.answer)
	default:
		w.reply(r, answer{status: 500})
	}
}

func (w *world) pay(k *worldKey, reference string) {
	if k.refuses {
		return
	}
	w.row("payment", k.name, reference, "new")
	k.pending = append(k.pending, len(w.Messages))
	w.Messages = append(w.Messages, history.Message{ID: fmt.Sprint("m", len(w.Messages)), Scope: "s", Key: k.name, State: "pending"})
}

// deliver takes a message to the provider, which tells its doubles by their key.
func (w *world) deliver(k *worldKey) {
	if len(k.pending) == 0 {
		return
	}
	row := w.rowOf(k.name)
	if w.once("charges", k, row.Reference) {
		effect := &w.Effects[len(w.Effects)-1]
		effect.Declined = w.rarely(3)
		row.State = "charged"
		if effect.Declined {
			row.State = "declined"
		}
	}
	if w.rarely(3) {
		// The worker dies before it notes the delivery: another one delivers again.
		return
	}
	w.Messages[k.pending[0]].State = "done"
	k.pending = k.pending[1:]
}

// once makes an effect that the provider has not seen for this operation.
func (w *world) once(book string, k *worldKey, reference string) bool {
	if w.hasEffect(k) {
		return false
	}
	w.effect(book, k.name, reference)
	return true
}

func (w *world) hasEffect(k *worldKey) bool {
	for i := range w.Effects {
		if w.Effects[i].Key == k.name {
			return true
		}
	}
	return false
}

// act does the work of an owner. An owner that was replaced by now may still do it.
func (w *world) act(r *request) {
	k := r.key
	r.stage, r.answer = acted, w.execution(r)
	switch {
	case w.rarely(6) && w.owns(r) && !r.resumed:
		w.release(r)
	case k.refuses:
	case k.kind == "booking":
		if w.once("charges", k, r.payload) {
			w.book(k.name, r.payload)
		} else if w.bug == repeatedStep {
			w.Stock[0].Left--
		}
	case k.kind == "refund":
		if w.once("refunds", k, r.payload) {
			w.row("refund", k.name, r.payload, "")
		}
	default:
		w.effect("transfers", k.name, r.payload)
	}
}

func (w *world) owns(r *request) bool {
	rec := r.key.record
	return rec != nil && rec.token == r.token && rec.state == "in_progress"
}

// release ends an execution that did nothing. One that was resumed cannot say so: it does not know what came before it.
func (w *world) release(r *request) {
	r.key.record.state = "failed_retryable"
	w.write(history.Write{Call: history.CallRelease, Key: r.key.name, Attempt: r.token, Accepted: true})
	w.reply(r, answer{status: 503, code: "not-executed"})
}

// settle stores the answer of an owner, which is late if the record is unknown, and fenced if it has another owner.
func (w *world) settle(r *request) {
	k, rec := r.key, r.key.record
	write := history.Write{Call: history.CallComplete, Key: k.name, Attempt: r.token, Digest: r.answer.body}
	open := rec != nil && (rec.state == "in_progress" || rec.state == "unknown") && rec.token == r.token
	if open || w.bug == noFence && rec != nil {
		rec.state, rec.answer = "completed", r.answer
		write.Accepted = true
	}
	if write.Accepted && w.rarely(6) {
		// The reply is lost, and the owner says it again.
		lost := write
		lost.Accepted, lost.Err = false, "reply lost"
		w.write(lost)
	}
	w.write(write)
	switch {
	case write.Accepted:
		w.reply(r, r.answer)
	case rec != nil && rec.state == "completed" && rec.payload == r.payload:
		w.reply(r, rec.answer)
	default:
		w.reply(r, answer{status: 500, code: "outcome-unknown"})
	}
}

// sweep ends a lease: a booking is resumed by another attempt, everything else becomes unknown.
func (w *world) sweep(k *worldKey) {
	if k.record == nil || k.record.state != "in_progress" {
		return
	}
	switch {
	case w.bug == earlyReap:
		k.record = nil
	case k.kind == "booking":
		r := &request{key: k, payload: k.record.payload, abandoned: true, resumed: true}
		w.grantTo(r)
		w.busy = append(w.busy, r)
	default:
		k.record.state = "unknown"
	}
}

// reconcile asks the provider. That nothing was done is certain only once the owner is gone.
func (w *world) reconcile(k *worldKey) {
	if k.record == nil || k.record.state != "unknown" {
		return
	}
	write := history.Write{Key: k.name, Attempt: k.record.token, Accepted: true}
	switch {
	case w.hasEffect(k):
		k.record.state = "completed"
		k.record.answer = answer{status: 201, body: fmt.Sprintf(`{"id":%q,"resolved":%d}`, k.record.payload, w.tick())}
		write.Call, write.Digest = history.CallResolveCompleted, k.record.answer.body
	case w.ownerLives(k):
		return
	default:
		k.record.state = "failed_retryable"
		write.Call = history.CallResolveNotExecuted
	}
	w.write(write)
}

func (w *world) ownerLives(k *worldKey) bool {
	for _, r := range w.busy {
		if r.key == k && (r.stage == granted || r.stage == acted) {
			return true
		}
	}
	return false
}
