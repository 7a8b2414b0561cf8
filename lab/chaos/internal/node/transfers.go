package node

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/examples/provider"
	"github.com/onceward/onceward/reconcile"
	"github.com/onceward/onceward/store"
)

// transfers is the harder route: a reserved one that calls a bank which recognises no key. Nothing but Onceward stands
// between a retry and a second transfer. What the bank does not know of may still be on its way, so that it counts as
// not executed only after its owner is gone for good and the longest way is over.
const transfers = "POST /transfers"

const (
	transferStep = "transfer"
	calling      = "calling"
)

// bank is the route and how its unknown outcomes are settled.
type bank struct {
	owners   string
	client   *provider.Client
	guard    *onceward.Guard
	silences *silences
}

func (b *bank) rule() reconcile.Rule {
	return reconcile.Rule{Resolver: reconcile.ResolverFunc(b.ask), Arrival: Timing.Arrival, OwnerGone: b.ownerGone}
}

// Transfer is both what is asked for and the answer.
type Transfer struct {
	ID        string `json:"id,omitempty"`
	Account   string `json:"account,omitempty"`
	Reference string `json:"reference"`
	Amount    int64  `json:"amount"`
	// Stall has the owner lose its heartbeats when the bank has answered, and outlast its lease.
	Stall bool `json:"stall,omitempty"`
}

// transfer records that the call is about to be made, and makes it. From then on only the bank can say whether it was.
func (b *bank) transfer(w http.ResponseWriter, r *http.Request) {
	var asked Transfer
	if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	op := onceward.FromContext(r.Context())
	release, err := b.show(op)
	if err == nil {
		defer release()
		err = op.Checkpoint(store.Checkpoint{Point: calling})
	}
	if err == nil {
		err = op.CheckLease()
	}
	if err != nil {
		op.NotExecuted()
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), Timing.Call)
	defer cancel()
	made, err := b.client.Charge(ctx, op.DownstreamKey(transferStep), provider.ChargeRequest{
		Amount: asked.Amount, Currency: "EUR", Reference: asked.Reference,
	})
	var refused *provider.RefusedError
	var declined *provider.DeclinedError
	switch {
	case errors.As(err, &declined):
		answerTransfer(w, op.Scope(), declined.Charge)
	case errors.As(err, &refused):
		op.NotExecuted()
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	case err != nil:
		op.Unknown() // the guard says so to the client
	default:
		if asked.Stall {
			b.silences.claim(store.Claim{ID: store.ID{Scope: op.Scope(), Key: op.Key()}, Attempt: op.Attempt()})
			time.Sleep(Timing.Lease * 3 / 2)
		}
		answerTransfer(w, op.Scope(), made)
	}
}

// transferAnswer is the answer to a transfer that the bank has decided on, by whichever way that was learned.
func transferAnswer(account string, made provider.Charge) (status int, body []byte) {
	body, err := json.Marshal(Transfer{ID: made.ID, Account: account, Reference: made.Reference, Amount: made.Amount})
	if err != nil {
		panic(err) // strings and numbers can always be encoded
	}
	if made.Status == provider.Declined {
		return http.StatusPaymentRequired, body
	}
	return http.StatusCreated, body
}

func answerTransfer(w http.ResponseWriter, account string, made provider.Charge) {
	status, body := transferAnswer(account, made)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(body) // a client that is gone retries
}

// ask finds out what became of a transfer. One that never came to the point where the call is made was not made, nor
// will it be: its owner cannot get past that point any more.
func (b *bank) ask(ctx context.Context, rec *store.Record) (reconcile.Answer, error) {
	if rec.Point != calling {
		return reconcile.NotExecuted("the call was not begun"), nil
	}
	key, err := b.guard.DownstreamKey(rec, transferStep)
	if err != nil {
		return reconcile.Answer{}, err
	}
	made, found, err := b.client.Find(ctx, key)
	switch {
	case err != nil:
		return reconcile.Answer{}, err
	case !found:
		return reconcile.NotFound(), nil
	}
	header := http.Header{"Content-Type": {"application/json"}}
	status, body := transferAnswer(rec.Scope, made)
	return reconcile.Completed(reconcile.Response(status, header, body), made.ID), nil
}

// show holds a lock on a file for as long as an attempt may make calls. The system frees it when the process dies, but
// not while it is paused: that is what tells the dead from those that sleep.
func (b *bank) show(op *onceward.Operation) (release func(), err error) {
	name := b.ownerFile(store.ID{Scope: op.Scope(), Key: op.Key()}, op.Attempt())
	file, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", file.Name(), err), file.Close())
	}
	return func() { _ = file.Close() }, nil // closing frees the lock
}

func (b *bank) ownerGone(_ context.Context, rec *store.Record) (bool, error) {
	file, err := os.Open(b.ownerFile(rec.ID, rec.Attempt))
	if errors.Is(err, os.ErrNotExist) {
		return true, nil // it never came so far
	}
	if err != nil {
		return false, err
	}
	defer file.Close()
	err = unix.Flock(int(file.Fd()), unix.LOCK_SH|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return false, nil
	}
	return err == nil, err
}

func (b *bank) ownerFile(id store.ID, attempt int64) string {
	name := sha256.Sum256(fmt.Appendf(nil, "%q %q %d", id.Scope, id.Key, attempt))
	return filepath.Join(b.owners, hex.EncodeToString(name[:16]))
}
