package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/jackc/pgx/v5"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
)

// The ways with a message, beside the same without.
const (
	outboxAdd   = "three statements and a message"
	outboxAddIn = "Onceward: transactional, three statements and a message"
)

// The goal is for a handler, where the message goes along with COMMIT. In a transaction without protection it is a
// statement of its own, and the bare ways say what a statement and a row cost that have nothing to do with the outbox.
var outboxContests = []pgContest{
	{16, durably, []string{pgTransactional3, outboxAddIn}, []comparison{
		{name: "outbox-add-in-a-handler", way: outboxAddIn, rival: pgTransactional3, times: true},
	}},
	{16, durably, []string{pgPlain3, outboxAdd, outboxBare, outboxNothing}, []comparison{
		{name: "outbox-add", way: outboxAdd, rival: pgPlain3, times: true},
		{name: "outbox-add-bare", way: outboxBare, rival: pgPlain3, times: true},
		{name: "outbox-add-nothing", way: outboxNothing, rival: pgPlain3, times: true},
	}},
}

// measureOutbox measures what a message costs the business, and how quickly messages leave.
func measureOutbox(ctx context.Context, o *options, r *report) (err error) {
	s, err := openServer(ctx, o, "shared_buffers=1GB")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	r.note("%s", s.about)
	for _, measure := range []part{s.measureAdd, s.measureDrain, s.measureClaim} {
		if err := measure(ctx, o, r); err != nil {
			return err
		}
	}
	return noteSync(o, r)
}

// measureAdd compares business transactions without a message and with one.
func (s *pgServer) measureAdd(ctx context.Context, o *options, r *report) error {
	return s.compete(ctx, o, r, "Business transactions a second, without a message and with one", outboxContests)
}

// openWithMessage is a business without protection that also adds a message, with a statement of its own.
func (b *pgBusiness) openWithMessage(ctx context.Context, s *pgSite) (*arena, error) {
	store, err := postgres.New(ctx, s.pool, postgres.WithSchema(s.schema))
	if err != nil {
		return nil, err
	}
	box, err := outbox.New(store, outbox.Config{})
	if err != nil {
		return nil, err
	}
	a, err := b.openWithOneMore(ctx, s, func(ctx context.Context, tx pgx.Tx) error {
		_, err := postgres.AddMessage(ctx, box, tx, businessMessage())
		return err
	})
	if err != nil {
		return nil, err
	}
	check := a.check
	a.check = func(ctx context.Context, done int64) error {
		return errors.Join(check(ctx, done), s.expect(ctx, done, `SELECT count(*) FROM onceward_outbox`))
	}
	a.close = store.Close
	return a, nil
}

// openAnswerWithMessage is a business in a handler that adds a message to its answer, so that it goes along with
// COMMIT.
func (b *pgBusiness) openAnswerWithMessage(ctx context.Context, s *pgSite) (*arena, error) {
	st, err := postgres.New(ctx, s.pool, postgres.WithSchema(s.schema))
	if err != nil {
		return nil, err
	}
	box, err := outbox.New(st, outbox.Config{})
	if err != nil {
		return nil, err
	}
	work := func(ctx context.Context, tx pgx.Tx) error {
		_, err := box.AddToAnswer(ctx, businessMessage())
		return errors.Join(err, b.work(ctx, tx))
	}
	return &arena{
		operate: func(ctx context.Context) error {
			return transactOnce(ctx, st, reservation(newKey()), completion(), work, store.DecisionExecute)
		},
		check: func(ctx context.Context, done int64) error {
			return errors.Join(b.checkRecords(ctx, s, done), s.expect(ctx, done, `SELECT count(*) FROM onceward_outbox`))
		},
		close: st.Close,
	}, errors.Join(b.create(ctx, s), fillRecords(ctx, s, st))
}

// businessMessage is about one of as many aggregates as there are accounts.
func businessMessage() outbox.Message {
	return outbox.Message{
		Topic: outboxTopic, AggregateType: "account", AggregateID: fmt.Sprint(rand.N(accounts)), Type: "payment.created",
		Payload: []byte(outboxPayload),
	}
}

const (
	outboxTopic   = "payments"
	outboxPayload = `{"payment":"9f1c2a9e-7b3d-4e21-8f60-2f9b8a1c7d55","amount":18497,"currency":"EUR",` +
		`"reference":"ORD-2024-000184"}`
)
