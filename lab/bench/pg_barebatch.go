package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5"
)

// bareLanes and bareWorth are the store's: a second connection when so many wait.
const (
	bareLanes = 2
	bareWorth = 4
)

// bareBatches gathers what arrives while a statement is on the wire, as the store does.
type bareBatches struct {
	site *bareSite

	mu    sync.Mutex
	queue []*bareItem
	busy  int
}

// bareItem is a key to reserve or to complete.
type bareItem struct {
	statement string
	id        []byte
	done      chan error
}

// do hands an item in and waits for it.
func (b *bareBatches) do(ctx context.Context, statement string, id []byte) error {
	t := &bareItem{statement: statement, id: id, done: make(chan error, 1)}
	b.mu.Lock()
	b.queue = append(b.queue, t)
	lead := b.busy == 0 || b.busy < bareLanes && len(b.queue) >= bareWorth
	if lead {
		b.busy++
	}
	b.mu.Unlock()
	if lead {
		go b.run(context.WithoutCancel(ctx))
	}
	return <-t.done
}

// run sends batches until nothing is left.
func (b *bareBatches) run(ctx context.Context) {
	for {
		b.mu.Lock()
		items := b.queue
		b.queue = nil
		if len(items) == 0 {
			b.busy--
		}
		b.mu.Unlock()
		if len(items) == 0 {
			return
		}
		err := b.send(ctx, items)
		for _, t := range items {
			t.done <- err
		}
	}
}

func (b *bareBatches) send(ctx context.Context, items []*bareItem) error {
	conn, giveBack, err := b.site.borrow(ctx)
	if err != nil {
		return err
	}
	defer giveBack()
	reserved, completed := arrayOfIDs(items, "bare_reserve"), arrayOfIDs(items, "bare_complete")
	if reserved != nil {
		conn.add("bare_reserve", reserved, b.site.answer[:16], b.site.request)
	}
	if completed != nil {
		conn.add("bare_complete", completed, b.site.answer)
	}
	rows, err := conn.trip()
	if err == nil && rows != len(items) {
		err = fmt.Errorf("%d of %d items were written", rows, len(items))
	}
	return err
}

// arrayOfIDs encodes the names of the items of one statement, or returns nil if there are none.
func arrayOfIDs(items []*bareItem, statement string) []byte {
	const uuid = 2950
	var elements []byte
	count := uint32(0)
	for _, t := range items {
		if t.statement == statement {
			elements = append(binary.BigEndian.AppendUint32(elements, uint32(len(t.id))), t.id...)
			count++
		}
	}
	if count == 0 {
		return nil
	}
	var array []byte
	for _, header := range [...]uint32{1, 0, uuid, count, 1} { // one dimension, no nulls, from one on
		array = binary.BigEndian.AppendUint32(array, header)
	}
	return append(array, elements...)
}

// openBareReserved is the business between a bare reservation and a bare answer.
func (b *pgBusiness) openBareReserved(ctx context.Context, s *pgSite) (*pgArena, error) {
	site, err := openBareSite(ctx, s, b)
	if err != nil {
		return nil, err
	}
	batches := &bareBatches{site: site}
	operate := func(ctx context.Context) error {
		id := bareID()
		if err := batches.do(ctx, "bare_reserve", id); err != nil {
			return err
		}
		if err := b.plainly(ctx, s); err != nil {
			return err
		}
		return batches.do(ctx, "bare_complete", id)
	}
	return &pgArena{
		operate: operate,
		check:   func(ctx context.Context, done int64) error { return b.checkRecords(ctx, s, done) },
		filled:  rowsBefore,
	}, nil
}

// openOutboxBare is a business with a row more, in a table that has one index and that nothing reads.
func (b *pgBusiness) openOutboxBare(ctx context.Context, s *pgSite) (*pgArena, error) {
	a, err := b.openWithOneMore(ctx, s, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO message (id, aggregate, payload) VALUES ($1, $2, $3)`,
			bareID(), businessMessage().AggregateID, []byte(outboxPayload))
		return err
	})
	if err != nil {
		return nil, err
	}
	_, err = s.pool.Exec(ctx, `CREATE TABLE message (id uuid PRIMARY KEY, aggregate text NOT NULL, payload bytea NOT NULL)`)
	check := a.check
	a.check = func(ctx context.Context, done int64) error {
		return errors.Join(check(ctx, done), s.expect(ctx, done, `SELECT count(*) FROM message`))
	}
	return a, err
}

// openOutboxNothing is a business with a statement more, which does nothing.
func (b *pgBusiness) openOutboxNothing(ctx context.Context, s *pgSite) (*pgArena, error) {
	return b.openWithOneMore(ctx, s, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `SELECT $1::integer`, 1)
		return err
	})
}

// openWithOneMore is a business with a statement more at its end.
func (b *pgBusiness) openWithOneMore(ctx context.Context, s *pgSite, more func(ctx context.Context, tx pgx.Tx) error) (*pgArena, error) {
	return &pgArena{
		operate: func(ctx context.Context) error {
			return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
				if err := b.work(ctx, tx); err != nil {
					return err
				}
				return more(ctx, tx)
			})
		},
		check: func(ctx context.Context, done int64) error { return b.check(ctx, s, done) },
	}, b.create(ctx, s)
}
