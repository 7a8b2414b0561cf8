package dynamodb

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/onceward/onceward/store"
)

const (
	// MaxWrites is how many writes and checks a handler can collect: DynamoDB accepts 100 in one transaction, and one
	// of them is the record.
	MaxWrites = 99
	// maxTransaction is the largest size of all items of a transaction together.
	maxTransaction = 4 << 20
)

// These errors are returned by a [Collector].
var (
	// ErrTooManyWrites is returned for a write past [MaxWrites]. The transaction is then not committed, whatever the
	// handler returns.
	ErrTooManyWrites = fmt.Errorf("dynamodb: a transaction has at most %d writes and checks beside its record", MaxWrites)
	// ErrWritesTooLarge is returned for a write that makes the transaction larger than 4 MB. The transaction is then
	// not committed.
	ErrWritesTooLarge = errors.New("dynamodb: a transaction has at most 4 MB")
	// ErrOwnTable is returned for a write to the table of the store. The transaction is then not committed.
	ErrOwnTable = errors.New("dynamodb: the table belongs to the store: a handler's items go into another one")
	// ErrTransactionOver is returned for a write after the transaction has ended.
	ErrTransactionOver = errors.New("dynamodb: the transaction has ended")
)

// Collector collects the writes of a handler. Nothing is sent until the handler has answered: then all writes are
// committed together with the finished record, or none. It is safe for use by several goroutines.
//
// A handler reads with a client of its own, outside the transaction: what it has read may have changed when the writes
// are committed. If that matters, add a condition to the write, or a Check on an item that is only read: if it does not
// hold at the commit nothing is written, and the request ends with an error that wraps [store.ErrWorkRefused].
type Collector struct {
	table string // the store's table; empty if there is none

	mu    sync.Mutex
	items []types.TransactWriteItem
	size  int
	// failed is why the writes must not be committed, and over why no more can be added.
	failed, over error
}

// NewCollector returns a collector, for tests that call a handler directly: see [ContextWithWrites].
func NewCollector() *Collector { return &Collector{} }

type writesKey struct{}

// ContextWithWrites returns a context from which a handler gets the collector, with [Writes]. It is for tests that call
// a handler directly, without a guard: [Collector.Items] then returns the collected writes.
func ContextWithWrites(ctx context.Context, c *Collector) context.Context {
	return context.WithValue(ctx, writesKey{}, c)
}

// Writes returns the collector of a transactional handler, or of a step of a phased handler. It panics if there is
// none: a write outside the transaction would be made twice.
func Writes(ctx context.Context) *Collector {
	c, ok := LookupWrites(ctx)
	if !ok {
		panic("dynamodb: no transaction in this context: is the route built with onceward.Transactional() on a " +
			"dynamodb store, is its method one that is protected (POST and PATCH, unless onceward.Methods says otherwise), " +
			"and is the context the handler's own?")
	}
	return c
}

// LookupWrites returns the collector of a transactional handler, if there is one.
func LookupWrites(ctx context.Context) (*Collector, bool) {
	c, ok := store.Value(ctx, writesKey{}).(*Collector)
	return c, ok
}

// Put adds an item to store.
func (c *Collector) Put(p types.Put) error {
	size := sizeOf(p.Item) + sizeOf(p.ExpressionAttributeValues)
	return c.add(p.TableName, size, types.TransactWriteItem{Put: &p})
}

// Update adds a change to an item.
func (c *Collector) Update(u types.Update) error {
	size := sizeOf(u.Key) + sizeOf(u.ExpressionAttributeValues)
	return c.add(u.TableName, size, types.TransactWriteItem{Update: &u})
}

// Delete adds the removal of an item.
func (c *Collector) Delete(d types.Delete) error {
	size := sizeOf(d.Key) + sizeOf(d.ExpressionAttributeValues)
	return c.add(d.TableName, size, types.TransactWriteItem{Delete: &d})
}

// Check adds a condition on an item that is not changed, such as an item that the handler has read.
func (c *Collector) Check(check types.ConditionCheck) error {
	size := sizeOf(check.Key) + sizeOf(check.ExpressionAttributeValues)
	return c.add(check.TableName, size, types.TransactWriteItem{ConditionCheck: &check})
}

// Items returns what was collected so far.
func (c *Collector) Items() []types.TransactWriteItem {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]types.TransactWriteItem(nil), c.items...)
}

func (c *Collector) add(table *string, size int, one types.TransactWriteItem) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.over != nil:
		return c.over
	case c.table != "" && table != nil && tableName(*table) == tableName(c.table):
		c.failed = ErrOwnTable
	case len(c.items) == MaxWrites:
		c.failed = ErrTooManyWrites
	case c.size+size > maxTransaction-maxItem:
		c.failed = ErrWritesTooLarge
	}
	if c.failed != nil {
		return c.failed
	}
	c.items, c.size = append(c.items, one), c.size+size
	return nil
}

// tableName returns the name of a table that is given by its name or by its ARN.
func tableName(table string) string { return table[strings.LastIndexByte(table, '/')+1:] }

// close ends the collection. It returns the collected writes, or the reason why they must not be committed.
func (c *Collector) close(why error) ([]types.TransactWriteItem, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over == nil {
		c.over = why
	}
	if c.failed != nil {
		return nil, fmt.Errorf("%w: %w", store.ErrWorkRefused, c.failed)
	}
	return c.items, nil
}
