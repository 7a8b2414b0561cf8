package sqlite

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"time"

	"github.com/ncruces/go-sqlite3"
	"github.com/onceward/onceward/store"
)

// readers is a pool of connections that read records without the writer. Connections are opened when they are needed.
type readers struct {
	open  func() (*reader, error)
	turns chan struct{} // as many as there may be readers
	once  sync.Once
	ended chan struct{}

	mu   sync.Mutex
	idle []*reader
}

// reader is a connection with a prepared look-up.
type reader struct {
	conn *sqlite3.Conn
	get  *sqlite3.Stmt
	key  key
}

// minReaders is the smallest limit of readers, so that a slow read does not block all others.
const minReaders = 4

// openReaders opens the first reader, to check that this is possible.
func openReaders(file string, busy time.Duration) (*readers, error) {
	r := &readers{
		open:  func() (*reader, error) { return openReader(file, busy) },
		turns: make(chan struct{}, max(minReaders, runtime.GOMAXPROCS(0))),
		ended: make(chan struct{}),
	}
	first, err := r.open()
	if err != nil {
		return nil, err
	}
	r.idle = append(r.idle, first)
	return r, nil
}

func openReader(file string, busy time.Duration) (*reader, error) {
	conn, err := sqlite3.Open(file)
	if err != nil {
		return nil, unavailable(err)
	}
	if err := configure(conn, busy, readerPragmas); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	get, _, err := conn.Prepare(selectRecord)
	if err != nil {
		return nil, errors.Join(unavailable(err), conn.Close())
	}
	return &reader{conn: conn, get: get}, nil
}

// with calls f with a reader, and releases the reader.
func (r *readers) with(ctx context.Context, f func(*reader) error) error {
	if err := r.await(ctx); err != nil {
		return err
	}
	defer func() { <-r.turns }()
	one, err := r.take()
	if err != nil {
		return err
	}
	defer r.release(one)
	return unavailable(f(one))
}

// await waits until one more reader is allowed.
func (r *readers) await(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return unavailable(err)
	}
	select {
	case <-r.ended:
		return errClosed
	default:
	}
	select {
	case r.turns <- struct{}{}:
		return nil
	default:
	}
	select {
	case r.turns <- struct{}{}:
		return nil
	case <-r.ended:
		return errClosed
	case <-ctx.Done():
		return unavailable(ctx.Err())
	}
}

// take returns the reader that was used last, whose cache is warm, or opens one.
func (r *readers) take() (*reader, error) {
	r.mu.Lock()
	if last := len(r.idle) - 1; last >= 0 {
		one := r.idle[last]
		r.idle = r.idle[:last]
		r.mu.Unlock()
		return one, nil
	}
	r.mu.Unlock()
	return r.open()
}

func (r *readers) release(one *reader) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.idle = append(r.idle, one)
}

// get reads one record. If there is none, its state is StateNone.
func (r *readers) get(ctx context.Context, id store.ID) (rec store.Record, err error) {
	err = r.with(ctx, func(one *reader) error {
		one.key = keyOf(one.key, id)
		rec, _, err = loadRecord(one.get, id, one.key)
		return err
	})
	return rec, err
}

// close waits for the running reads and closes the connections.
func (r *readers) close() error {
	var errs []error
	r.once.Do(func() {
		close(r.ended)
		for range cap(r.turns) {
			r.turns <- struct{}{}
		}
		for _, one := range r.idle {
			errs = append(errs, one.get.Close(), one.conn.Close())
		}
	})
	return errors.Join(errs...)
}
