package postgres

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// maxOperations is how many operations get a number. A program has a few dozen; one that makes up names for Guard.Do
// stores those in full.
const maxOperations = 4096

const (
	insertOperation = `INSERT INTO @operation (name) VALUES ($1) ON CONFLICT (name) DO NOTHING`
	selectOperation = `SELECT number, name FROM @operation WHERE number <= $1`
	// lookTimeout bounds what is read on the side.
	lookTimeout = 5 * time.Second
)

// operations knows the numbers of operations.
type operations struct {
	pool   *pgxpool.Pool
	insert string
	read   string

	mu      sync.RWMutex
	numbers map[string]int32
	names   map[int32]string
}

func newOperations(pool *pgxpool.Pool, n names) *operations {
	return &operations{
		pool: pool, insert: n.render(insertOperation), read: n.render(selectOperation),
		numbers: make(map[string]int32), names: make(map[int32]string),
	}
}

// number returns that of an operation, giving it one if it has none; zero if it is to be stored by its name.
func (o *operations) number(ctx context.Context, name string) (int32, error) {
	o.mu.RLock()
	number, known := o.numbers[name]
	full := len(o.names) >= maxOperations
	o.mu.RUnlock()
	if known || full || name == "" {
		return number, nil
	}
	if _, err := o.pool.Exec(ctx, o.insert, []byte(name)); err != nil {
		return 0, unavailable(err)
	}
	if err := o.load(ctx); err != nil {
		return 0, err
	}
	o.mu.RLock()
	defer o.mu.RUnlock()
	return o.numbers[name], nil
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
	defer o.mu.RUnlock()
	if name, known = o.names[number]; !known {
		return "", fmt.Errorf("its operation has number %d, which is not in the table of operations", number)
	}
	return name, nil
}

// load reads all that have numbers.
func (o *operations) load(ctx context.Context) error {
	rows, err := o.pool.Query(ctx, o.read, maxOperations)
	if err != nil {
		return unavailable(err)
	}
	defer rows.Close()
	o.mu.Lock()
	defer o.mu.Unlock()
	for rows.Next() {
		var number int32
		var name []byte
		if err := rows.Scan(&number, &name); err != nil {
			return unavailable(err)
		}
		o.numbers[string(name)], o.names[number] = number, string(name)
	}
	return unavailable(rows.Err())
}
