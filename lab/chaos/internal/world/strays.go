package world

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/examples/provider"
	"github.com/onceward/onceward/lab/chaos/internal/node"
)

// Strays are on one side only: charges and refunds in the acquirer's ledger that no client here has asked for, and rows
// of refunds that were never made. The comparisons have to find each of them, and nothing else when all is quiet.
const stray = "stray-"

// strayName is a name that no other stray has.
func (w *World) strayName() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return fmt.Sprintf("%s%s%d", w.window, stray, w.random.Int64())
}

// isStray reports whether a reference is that of a stray.
func (w *World) isStray(reference string) bool { return strings.HasPrefix(reference, w.window+stray) }

// strayEffect puts a charge and a refund of it into the ledger. What came of one that the acquirer does not answer, as
// it misbehaves, its ledger tells. The clock is not set meanwhile: where it is back for a moment, an effect would be
// dated before the beginning of all that is compared.
func (w *World) strayEffect(ctx context.Context) error {
	w.clock.Lock()
	defer w.clock.Unlock()
	if time.Now().Add(w.offset).Before(w.began) {
		return errNotFired
	}
	ctx, cancel := context.WithTimeout(ctx, strayTime)
	defer cancel()
	acquirer, name := &provider.Client{URL: w.acquirer.URL()}, w.strayName()
	made, err := acquirer.Charge(ctx, name, provider.ChargeRequest{Amount: 2, Currency: "EUR", Reference: name})
	if err == nil {
		_, err = acquirer.Refund(ctx, name, provider.RefundRequest{Charge: made.ID, Amount: 1, Reference: name})
	}
	if err != nil {
		return errNotFired
	}
	return nil
}

// strayTime is how long it may take to put a row into a table before its window may have ended. One that takes longer,
// or whose commit ends in an error, may be found all the same.
const strayTime = 10 * time.Second

// strayRow writes down a refund that was never made. It is dated ahead, so that it is there when its window ends: the
// clock is not set meanwhile.
func (w *World) strayRow(ctx context.Context) error {
	w.clock.Lock()
	defer w.clock.Unlock()
	name := w.strayName()
	id := "re_9" + fmt.Sprintf("%011d", w.strayNumber()) // behind those of the acquirer
	db, err := w.looking(ctx)
	if err != nil {
		return errNotFired
	}
	began := time.Now()
	w.late[id] = true // until it is known to be there in time
	err = db.InTx(ctx, func(ctx context.Context) error {
		_, err := onceward.Tx(ctx).ExecContext(ctx,
			db.Bind(`INSERT INTO refund (id, payment, amount, reference, made_at) VALUES ($1, $2, 1, $3, $4)`),
			id, "", name, began.Add(w.offset+strayTime).UnixMicro())
		return err
	})
	if err != nil || time.Since(began) > strayTime {
		return errNotFired
	}
	delete(w.late, id)
	return nil
}

// removeStrays takes the rows out again: a comparison that goes back, as the clock does, would find them in a later
// window of the run, where no node knows of them.
func (w *World) removeStrays(ctx context.Context) error {
	db, err := w.open(ctx)
	if err != nil {
		return err
	}
	err = db.InTx(ctx, func(ctx context.Context) error {
		_, err := onceward.Tx(ctx).ExecContext(ctx, db.Bind(`DELETE FROM refund WHERE reference LIKE $1`),
			w.window+stray+"%")
		return err
	})
	return errors.Join(err, db.Close())
}

func (w *World) strayNumber() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.random.Int64N(1e11)
}

// compared asks a server, whatever its clock says, to compare all books of the window, and reports whether they are.
func (w *World) compared(ctx context.Context) (bool, error) {
	if err := w.endWindow(ctx); err != nil {
		return false, err
	}
	asked, err := json.Marshal(node.Comparison{Window: w.window, Since: w.began, Until: w.ended})
	if err != nil {
		return false, err
	}
	url := pick(w, w.servers).URL() + node.ComparePath
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(asked))
	if err != nil {
		return false, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return false, nil // it is asked again until there is no time left
	}
	defer response.Body.Close()
	return response.StatusCode == http.StatusNoContent, nil
}

// isLate reports whether a stray may have been put into its table too late to be found.
func (w *World) isLate(id string) bool {
	w.clock.Lock()
	defer w.clock.Unlock()
	return w.late[id]
}
