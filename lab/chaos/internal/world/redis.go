package world

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/onceward/onceward/internal/servers"
)

// redis is a Redis server that has each write on disk before it acknowledges it, with a wire in front of it for the
// nodes.
type redis struct {
	world  *World
	server *servers.RedisServer
	wire   *wire
	// acts makes those who kill and pause the server wait for each other.
	acts sync.Mutex
}

func openRedis(ctx context.Context, w *World) (database, error) {
	server, err := servers.StartRedis(ctx)
	if err != nil {
		return nil, err
	}
	r := &redis{world: w, server: server}
	if r.wire, err = w.network.lay("database", server.Addr()); err != nil {
		return nil, errors.Join(err, server.Close())
	}
	return r, nil
}

func (r *redis) url() string       { return "redis://" + r.wire.addr() }
func (r *redis) direct() string    { return r.server.URL() }
func (r *redis) front() string     { return "" }
func (r *redis) clockFile() string { return "" }
func (r *redis) plain() bool       { return true }
func (r *redis) close() error      { return r.server.Close() }

func (r *redis) busy(context.Context) string { return "" }

func (r *redis) setClock(context.Context, time.Duration) error { return nil }

func (r *redis) faults() []Fault {
	return append([]Fault{
		{"database-kill", func(ctx context.Context) error { return r.alone(ctx, r.world.die) }},
		{"database-pause", func(ctx context.Context) error { return r.alone(ctx, r.world.sleep) }},
	}, r.world.wireFaults("database", r.wire)...)
}

// alone does something to the server that nothing else may be done to at the time.
func (r *redis) alone(ctx context.Context, do func(context.Context, machine) error) error {
	r.acts.Lock()
	defer r.acts.Unlock()
	return do(ctx, r.server)
}

// wireFaults are what happens between the nodes and servers of a kind.
func (w *World) wireFaults(kind string, wires ...*wire) []Fault {
	return []Fault{
		{kind + "-cut", func(ctx context.Context) error {
			return pick(w, wires).snap(ctx, w.between(50*time.Millisecond, 500*time.Millisecond))
		}},
		{kind + "-slow", w.onWire(&wires, slow, fromServer, time.Second)},
		{kind + "-reply-cut", w.onWire(&wires, cutShort, fromServer, 300*time.Millisecond)},
		{kind + "-reply-lost", w.onWire(&wires, losing, fromServer, 300*time.Millisecond)},
	}
}
