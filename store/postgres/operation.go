package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// maxOperations is how many operations get a number. A program has a few dozen; one that makes up names, or calls
	// its operations by paths with values in them, stores those in full.
	maxOperations = 4096
	// maxOperationName is the longest name that gets a number: an index does not take values of every length.
	maxOperationName = 1024
	// lookTimeout bounds what is read on the side.
	lookTimeout = 5 * time.Second
)

// The statements about operations. One node at a time gives out numbers, so that the bound holds and none is used up
// by a row that was there already; as the lock is taken before the statement that looks, it sees what the last node
// has committed. The oldest numbers count, should there ever be more rows than the bound.
const (
	insertOperation = `INSERT INTO @operation (name) SELECT $1
		WHERE NOT EXISTS (SELECT FROM @operation WHERE name = $1) AND (SELECT count(*) FROM @operation) < $2
		ON CONFLICT (name) DO NOTHING`
	selectOperations = `SELECT number, name FROM @operation ORDER BY number LIMIT $1`
	selectOperation  = `SELECT name FROM @operation WHERE number = $1`
)

// operations knows the numbers of operations.
type operations struct {
	pool   *ownPool
	lock   string // the statement, and what it locks
	what   string
	insert string
	read   string
	find   string
	adding chan struct{} // holds a token while this process gives out a number

	mu      sync.RWMutex
	numbers map[string]int32
	names   map[int32]string
}

func newOperations(pool *ownPool, n names) *operations {
	return &operations{
		pool: pool, what: "onceward operation " + n.channel(),
		lock:   `SELECT ` + takeLock(`hashtextextended($1, 0)`),
		insert: n.render(insertOperation), read: n.render(selectOperations), find: n.render(selectOperation),
		adding: make(chan struct{}, 1), numbers: make(map[string]int32), names: make(map[int32]string),
	}
}

// number returns that of an operation, giving it one if it has none; zero if it is to be stored by its name.
func (o *operations) number(ctx context.Context, name string) (int32, error) {
	if number, decided := o.decided(name); decided {
		return number, nil
	}
	select {
	case o.adding <- struct{}{}:
		defer func() { <-o.adding }()
	case <-ctx.Done():
		return 0, unavailable(ctx.Err())
	}
	if number, decided := o.decided(name); decided {
		return number, nil // by the one before
	}
	if err := repeated(ctx, o.pool, func() error { return o.add(ctx, name) }); err != nil {
		return 0, err
	}
	return o.known(name), nil
}

// decided returns the number of an operation, if the database need not be asked for it.
func (o *operations) decided(name string) (number int32, decided bool) {
	o.mu.RLock()
	defer o.mu.RUnlock()
	number, known := o.numbers[name]
	return number, known || name == "" || len(name) > maxOperationName || len(o.names) >= maxOperations
}

// known returns the number of an operation that has been used by this process before.
func (o *operations) known(name string) int32 {
	o.mu.RLock()
	defer o.mu.RUnlock()
	return o.numbers[name]
}

// name is the inverse of number.
func (o *operations) name(number int32) (string, error) {
	o.mu.RLock()
	name, known := o.names[number]
	o.mu.RUnlock()
	if known {
		return name, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), lookTimeout)
	defer cancel()
	if err := o.load(ctx); err != nil {
		return "", err
	}
	o.mu.RLock()
	name, known = o.names[number]
	o.mu.RUnlock()
	if known {
		return name, nil
	}
	return o.nameBeyond(ctx, number)
}

// nameBeyond is name for a number that does not count, because there are more than the bound: records may have it all
// the same.
func (o *operations) nameBeyond(ctx context.Context, number int32) (string, error) {
	var name []byte
	err := o.pool.QueryRow(ctx, o.find, number).Scan(&name)
	if errors.Is(err, pgx.ErrNoRows) {
		return "", fmt.Errorf("its operation has number %d, which is not in the table of operations", number)
	}
	if err != nil {
		return "", unavailable(err)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.names[number] = string(name)
	return string(name), nil
}

// add gives an operation a number, if there is one left, and reads all that have one. The statements of a batch are one
// transaction, which needs nothing of this node to end: one that stops here keeps no other from its turn.
func (o *operations) add(ctx context.Context, name string) error {
	batch := &pgx.Batch{}
	batch.Queue(o.lock, o.what)
	batch.Queue(o.insert, []byte(name), maxOperations)
	if err := o.pool.SendBatch(ctx, batch).Close(); err != nil {
		return err
	}
	return o.load(ctx)
}

// numbered is a row of the table of operations.
type numbered struct {
	Number int32
	Name   []byte
}

// load reads all that have numbers.
func (o *operations) load(ctx context.Context) error {
	all, err := collect(ctx, o.pool, o.read, []any{maxOperations}, pgx.RowToStructByPos[numbered])
	if err != nil {
		return unavailable(err)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, op := range all {
		o.numbers[string(op.Name)], o.names[op.Number] = op.Number, string(op.Name)
	}
	return nil
}
