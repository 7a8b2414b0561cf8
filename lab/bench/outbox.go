package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
)

// The ways with a message, beside the same without.
const (
	outboxAdd      = "one insert and a message"
	outboxAddBatch = "one insert and a message, in one batch"
	outboxAdd3     = "three statements and a message"
	outboxAddLast  = "three statements, the last with a message in a batch"
	outboxAddInTx3 = "three statements and a message, in InTx"
	outboxAddIn    = "Onceward: transactional, one insert and a message"
	outboxAddIn3   = "Onceward: transactional, three statements and a message"
)

// The goal is for the whole payment in a transaction without protection, to which the message adds a statement of its own. What
// it costs with fewer callers, in a batch, in InTx and in a handler of Onceward, where it is added to the answer, and beside a
// single insert, is shown too.
var outboxFigures = []pgFigure{
	{"outbox-add", 16, pgPlain3, outboxAdd3},
	{"outbox-add-c1", 1, pgPlain3, outboxAdd3},
	{"outbox-add-c4", 4, pgPlain3, outboxAdd3},
	{"outbox-add-bare", 16, pgPlain3, outboxBare},
	{"outbox-add-nothing", 16, pgPlain3, outboxNothing},
	{"outbox-add-in-a-batch", 16, pgPlain3, outboxAddLast},
	{"outbox-add-in-intx", 16, pgPlain3, outboxAddInTx3},
	{"outbox-add-in-a-handler", 16, pgTransactional3, outboxAddIn3},
	{"outbox-add-to-one-insert", 16, pgPlain, outboxAdd},
	{"outbox-add-to-one-insert-in-a-batch", 16, pgPlain, outboxAddBatch},
	{"outbox-add-to-one-insert-in-a-handler", 16, pgTransactional, outboxAddIn},
}

// measureOutbox measures what a message costs the business, and how quickly messages leave.
func measureOutbox(ctx context.Context, o *options, r *report) (err error) {
	s, err := openServer(ctx, o, "shared_buffers=1GB")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	r.note("%s", s.about)
	for _, measure := range []func(context.Context, *options, *report) error{s.measureAdd, s.measureDrain, s.measureClaim} {
		if err := measure(ctx, o, r); err != nil {
			return err
		}
	}
	return noteSync(o, r)
}

// measureAdd compares business transactions without a message and with one.
func (s *pgServer) measureAdd(ctx context.Context, o *options, r *report) error {
	t := &table{title: "Business transactions a second, without a message and with one", head: []string{"way", "callers", "without", "with"}}
	for _, f := range outboxFigures {
		rates, err := s.compare(ctx, o, r, []pgFigure{f}, durably)
		if err != nil {
			return err
		}
		if len(rates) > 0 {
			t.add(f.rival, strconv.Itoa(f.callers), grouped(rates.median(f.way)), grouped(rates.median(f.rival)))
		}
	}
	if len(t.rows) > 0 {
		r.keep(t)
	}
	return nil
}

// withMessage is a business without protection that also adds a message about one of many aggregates.
type withMessage struct {
	*pgBusiness
	// inTx does the work and adds the message.
	inTx func(ctx context.Context, tx pgx.Tx, box *outbox.Outbox) error
}

// apart adds the message with a statement of its own.
func apart(b *pgBusiness) withMessage {
	return withMessage{b, func(ctx context.Context, tx pgx.Tx, box *outbox.Outbox) error {
		if err := b.work(ctx, tx); err != nil {
			return err
		}
		_, err := postgres.AddMessage(ctx, box, tx, businessMessage())
		return err
	}}
}

// withAnswer adds the message to the answer, so that it goes along with COMMIT.
func withAnswer(b *pgBusiness) withMessage {
	return withMessage{b, func(ctx context.Context, tx pgx.Tx, box *outbox.Outbox) error {
		if err := b.work(ctx, tx); err != nil {
			return err
		}
		_, err := box.AddToAnswer(ctx, businessMessage())
		return err
	}}
}

// together sends the insert and the message in one round trip.
var together = withMessage{&oneRow, func(ctx context.Context, tx pgx.Tx, box *outbox.Outbox) error {
	var batch pgx.Batch
	batch.Queue(pgInsertPayment, rand.N(accounts), businessRow[0], businessRow[1], businessRow[2])
	if _, err := postgres.QueueMessage(ctx, box, &batch, businessMessage()); err != nil {
		return err
	}
	return tx.SendBatch(ctx, &batch).Close()
}}

// lastTogether does the whole payment, and sends its last statement and the message in one round trip.
var lastTogether = withMessage{&threeStatements, func(ctx context.Context, tx pgx.Tx, box *outbox.Outbox) error {
	account, err := payFrom(ctx, tx)
	if err != nil {
		return err
	}
	var batch pgx.Batch
	batch.Queue(pgInsertEntry, account, businessRow[1], businessRow[0])
	if _, err := postgres.QueueMessage(ctx, box, &batch, businessMessage()); err != nil {
		return err
	}
	return tx.SendBatch(ctx, &batch).Close()
}}

// open is a business in transactions of its own.
func (b withMessage) open(ctx context.Context, s *pgSite) (*pgArena, error) {
	return b.openIn(ctx, s, func(ctx context.Context, _ *postgres.Store, work func(context.Context, pgx.Tx) error) error {
		return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error { return work(ctx, tx) })
	})
}

// openInTx is a business in transactions that the store begins and commits.
func (b withMessage) openInTx(ctx context.Context, s *pgSite) (*pgArena, error) {
	return b.openIn(ctx, s, func(ctx context.Context, store *postgres.Store, work func(context.Context, pgx.Tx) error) error {
		return store.InTx(ctx, func(ctx context.Context) error { return work(ctx, postgres.Tx(ctx)) })
	})
}

type runInTx func(ctx context.Context, store *postgres.Store, work func(context.Context, pgx.Tx) error) error

func (b withMessage) openIn(ctx context.Context, s *pgSite, run runInTx) (*pgArena, error) {
	if err := b.create(ctx, s); err != nil {
		return nil, err
	}
	store, err := postgres.New(ctx, s.pool, postgres.WithSchema(s.schema))
	if err != nil {
		return nil, err
	}
	box, err := outbox.New(store, outbox.Config{})
	if err != nil {
		return nil, err
	}
	return &pgArena{
		operate: func(ctx context.Context) error {
			return run(ctx, store, func(ctx context.Context, tx pgx.Tx) error { return b.inTx(ctx, tx, box) })
		},
		check: func(ctx context.Context, done int64) error {
			return errors.Join(b.check(ctx, s, done), s.expect(ctx, done, `SELECT count(*) FROM onceward_outbox`))
		},
		close: store.Close,
	}, nil
}

// openProtected is a business in a handler of Onceward that also adds a message.
func (b withMessage) openProtected(ctx context.Context, s *pgSite) (*pgArena, error) {
	st, err := postgres.New(ctx, s.pool, postgres.WithSchema(s.schema))
	if err != nil {
		return nil, err
	}
	box, err := outbox.New(st, outbox.Config{})
	if err != nil {
		return nil, err
	}
	work := func(ctx context.Context, tx pgx.Tx) error { return b.inTx(ctx, tx, box) }
	return &pgArena{
		operate: func(ctx context.Context) error {
			return transactOnce(ctx, st, reservation(newKey()), completion(), work, store.DecisionExecute)
		},
		check: func(ctx context.Context, done int64) error {
			return errors.Join(b.checkRecords(ctx, s, done), s.expect(ctx, done, `SELECT count(*) FROM onceward_outbox`))
		},
		filled: rowsBefore,
		close:  st.Close,
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
	outboxPayload = `{"payment":"9f1c2a9e-7b3d-4e21-8f60-2f9b8a1c7d55","amount":18497,"currency":"EUR","reference":"ORD-2024-000184"}`
)
