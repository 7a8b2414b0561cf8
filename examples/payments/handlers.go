package payments

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"time"

	"github.com/onceward/onceward"
)

// Payment is what the API stores and shows.
type Payment struct {
	ID        string      `json:"id"`
	Customer  string      `json:"customer"`
	Amount    json.Number `json:"amount"`
	Currency  string      `json:"currency"`
	CreatedAt string      `json:"created_at"`
}

var currencyCode = regexp.MustCompile(`^[A-Z]{3}$`)

// check says what is wrong with a payment that a client asks for.
func (p *Payment) check() error {
	amount, err := p.Amount.Float64()
	switch {
	case p.Customer == "":
		return errors.New("customer is missing")
	case err != nil || amount <= 0:
		return errors.New("amount must be a number greater than zero")
	case !currencyCode.MatchString(p.Currency):
		return errors.New("currency must be three capital letters, such as EUR")
	default:
		return nil
	}
}

func decodePayment(r *http.Request) (*Payment, error) {
	var p Payment
	if err := json.NewDecoder(r.Body).Decode(&p); err != nil {
		return nil, fmt.Errorf(`the body must be JSON such as {"customer":"c1","amount":1999,"currency":"EUR"}: %w`, err)
	}
	return &p, p.check()
}

// createPayment runs inside the transaction that also holds its claim and its answer: all of it happens, once, or nothing.
func (a *API) createPayment(w http.ResponseWriter, r *http.Request) {
	p, err := decodePayment(r)
	if err != nil {
		fail(w, http.StatusBadRequest, err.Error())
		return
	}
	p.ID = "pay_" + rand.Text()
	p.CreatedAt = time.Now().UTC().Format(time.RFC3339Nano)
	_, err = onceward.Tx(r.Context()).ExecContext(r.Context(),
		`INSERT INTO payment (id, account, customer, amount, currency, created_at) VALUES (?, ?, ?, ?, ?, ?)`,
		p.ID, onceward.FromContext(r.Context()).Scope(), p.Customer, p.Amount.String(), p.Currency, p.CreatedAt)
	if err != nil {
		fail(w, http.StatusInternalServerError, "the payment could not be written: "+err.Error())
		return
	}
	w.Header().Set("Location", "/payments/"+p.ID)
	answer(w, http.StatusCreated, p)
}

// listPayments shows the caller's payments, oldest first.
func (a *API) listPayments(w http.ResponseWriter, r *http.Request) {
	payments, err := a.payments(r, "")
	if err != nil {
		fail(w, http.StatusInternalServerError, err.Error())
		return
	}
	answer(w, http.StatusOK, payments)
}

// showPayment shows one of the caller's payments.
func (a *API) showPayment(w http.ResponseWriter, r *http.Request) {
	payments, err := a.payments(r, r.PathValue("id"))
	switch {
	case err != nil:
		fail(w, http.StatusInternalServerError, err.Error())
	case len(payments) == 0:
		fail(w, http.StatusNotFound, "there is no such payment")
	default:
		answer(w, http.StatusOK, payments[0])
	}
}

// payments reads the caller's payments: all of them, or the one with the given id.
func (a *API) payments(r *http.Request, id string) ([]Payment, error) {
	owner, err := account(r)
	if err != nil {
		return nil, err
	}
	rows, err := a.store.DB().QueryContext(r.Context(),
		`SELECT id, customer, amount, currency, created_at FROM payment
		WHERE account = ?1 AND (?2 = '' OR id = ?2) ORDER BY rowid`, owner, id)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	payments := []Payment{}
	for rows.Next() {
		var p Payment
		var amount string
		if err := rows.Scan(&p.ID, &p.Customer, &amount, &p.Currency, &p.CreatedAt); err != nil {
			return nil, err
		}
		p.Amount = json.Number(amount)
		payments = append(payments, p)
	}
	return payments, rows.Err()
}

// beSlow stands for a call to another system: it counts that it was started, durably, and then takes its time.
func (a *API) beSlow(w http.ResponseWriter, r *http.Request) {
	ms, err := strconv.Atoi(r.URL.Query().Get("ms"))
	if err != nil || ms < 0 || time.Duration(ms)*time.Millisecond > slowLongest {
		fail(w, http.StatusBadRequest, fmt.Sprintf("ms must be a number from 0 to %d", slowLongest.Milliseconds()))
		return
	}
	if err := a.noteSlow(r.Context()); err != nil {
		onceward.FromContext(r.Context()).NotExecuted()
		fail(w, http.StatusServiceUnavailable, "the execution could not be counted, and did not start: "+err.Error())
		return
	}
	select {
	case <-time.After(time.Duration(ms) * time.Millisecond):
		answer(w, http.StatusOK, map[string]int{"slept_ms": ms})
	case <-r.Context().Done():
		fail(w, http.StatusInternalServerError, context.Cause(r.Context()).Error())
	}
}

func (a *API) noteSlow(ctx context.Context) error {
	return a.store.Update(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO slow_execution (account, started_at) VALUES (?, datetime('now'))`,
			onceward.FromContext(ctx).Scope())
		return err
	})
}

// countSlow shows how often the caller's slow requests were really executed.
func (a *API) countSlow(w http.ResponseWriter, r *http.Request) {
	owner, err := account(r)
	if err != nil {
		fail(w, http.StatusUnauthorized, err.Error())
		return
	}
	var executions int
	err = a.store.DB().QueryRowContext(r.Context(), `SELECT count(*) FROM slow_execution WHERE account = ?`, owner).Scan(&executions)
	if err != nil {
		fail(w, http.StatusInternalServerError, err.Error())
		return
	}
	answer(w, http.StatusOK, map[string]int{"executions": executions})
}

func answer(w http.ResponseWriter, status int, value any) {
	body, err := json.Marshal(value)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n')) // a client that is gone retries
}

func fail(w http.ResponseWriter, status int, detail string) {
	answer(w, status, map[string]string{"error": detail})
}
