package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/phase"
	"github.com/onceward/onceward/store/sqlite"
)

// booking is what is carried from step to step.
type booking struct {
	Guest  string `json:"guest"`
	Seat   int64  `json:"seat"`
	Charge string `json:"charge"`
}

// bank is another system, which recognises a key that it has seen. Its first reply is lost.
type bank struct {
	charges map[string]string
	asked   int
}

func (b *bank) charge(key string) (string, error) {
	if b.charges[key] == "" {
		b.charges[key] = fmt.Sprint("ch_", len(b.charges)+1)
	}
	if b.asked++; b.asked == 1 {
		return "", errors.New("the connection was lost")
	}
	return b.charges[key], nil
}

// A phased operation: a booking holds a seat, charges the guest, and is confirmed. The reply of the bank is lost, so
// the guest is told that the booking is in progress; the resumer goes on behind the seat, and the guest's retry gets
// the answer.
func Example_phase() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "phase")
	check(err)
	defer os.RemoveAll(dir)
	store, err := sqlite.Open(ctx, filepath.Join(dir, "bookings.db"))
	check(err)
	defer store.Close()
	check(store.Update(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `CREATE TABLE seat (number INTEGER PRIMARY KEY, guest TEXT, confirmed INTEGER)`)
		return err
	}))
	guard, err := onceward.New(store, onceward.Config{
		Scope: onceward.SingleScope("hall"), Secret: []byte("at least sixteen random bytes"),
		Logger: slog.New(slog.DiscardHandler),
	})
	check(err)

	other := &bank{charges: make(map[string]string)}
	book := phase.Must(phase.New(phase.Definition[booking]{
		Name: "POST /bookings",
		Steps: []phase.Step[booking]{
			phase.Local("seat", func(ctx context.Context, b *booking) error {
				row := onceward.Tx(ctx).QueryRowContext(ctx, `INSERT INTO seat (guest) VALUES ($1) RETURNING number`, b.Guest)
				return row.Scan(&b.Seat)
			}),
			phase.External("charge", func(_ context.Context, key string, b *booking) (err error) {
				b.Charge, err = other.charge(key)
				return err
			}).Repeat(),
			phase.Local("confirm", func(ctx context.Context, b *booking) error {
				_, err := onceward.Tx(ctx).ExecContext(ctx, `UPDATE seat SET confirmed = 1 WHERE number = $1`, b.Seat)
				return err
			}),
		},
		Answer:     func(b *booking) phase.Answer { return phase.JSON(http.StatusCreated, b) },
		MinBackoff: time.Millisecond,
	}))
	h := book.Handler(guard, func(r *http.Request) (*booking, error) {
		return &booking{Guest: r.FormValue("guest")}, nil
	})

	sendBooking(h)
	resumer, err := phase.NewResumer(guard, store, phase.ResumerConfig{Operations: []phase.Resumable{book}})
	check(err)
	time.Sleep(10 * time.Millisecond) // a server runs resumer.Run(ctx) instead
	report, err := resumer.RunOnce(ctx)
	check(err)
	fmt.Printf("resumed: %+v\n", report)
	sendBooking(h)
	fmt.Printf("the bank was asked %d times and made %d charge\n", other.asked, len(other.charges))

	// Output:
	// 409 in progress
	// resumed: {Finished:1 Waiting:0 Unknown:0 Skipped:0 Hanging:0}
	// 201 {"guest":"Ada","seat":1,"charge":"ch_1"}
	// the bank was asked 2 times and made 1 charge
}

func sendBooking(h http.Handler) {
	r := httptest.NewRequest(http.MethodPost, "/bookings", strings.NewReader("guest=Ada"))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("Idempotency-Key", "8e03978e-40d5-43dd-bc93-6894a57f9324")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if w.Code == http.StatusConflict {
		fmt.Println(w.Code, "in progress")
		return
	}
	fmt.Println(w.Code, w.Body)
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
