package world

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/lab/chaos/internal/history"
	"github.com/onceward/onceward/lab/chaos/internal/node"
	"github.com/onceward/onceward/store"
)

// dynamodb is a server that speaks DynamoDB's protocol and has each write on disk before it acknowledges it. In front of
// it are a proxy for HTTP, which does what the service and the way to it do in production, and a wire, for the nodes.
type dynamodb struct {
	world  *World
	server *servers.DynamoDBServer
	way    *httpWay
	wire   *wire
	// acts makes those who kill and pause the server wait for each other.
	acts sync.Mutex
}

func openDynamoDB(ctx context.Context, w *World) (database, error) {
	server, err := servers.StartDynamoDB(ctx)
	if err != nil {
		return nil, err
	}
	d := &dynamodb{world: w, server: server}
	if d.way, err = openWay(w, server.URL()); err != nil {
		return nil, errors.Join(err, server.Close())
	}
	if d.wire, err = w.network.lay("database", d.way.addr()); err != nil {
		return nil, errors.Join(err, d.close())
	}
	if err := errors.Join(makeTables(ctx, d.direct()), node.CreateEntryItems(ctx, d.direct())); err != nil {
		return nil, errors.Join(err, d.close())
	}
	return d, nil
}

// harvestItems reads the entries of the window.
func (d *dynamodb) harvestItems(ctx context.Context, run *history.Run, owners map[string]store.ID) error {
	entries, err := node.EntryItems(ctx, d.direct())
	for _, e := range entries {
		if !strings.HasPrefix(e.Reference, d.world.window) {
			continue
		}
		owner := owners[e.Reference]
		run.Rows = append(run.Rows, history.Row{
			Table: "entry", ID: e.ID, Reference: e.Reference, Scope: owner.Scope, Key: owner.Key,
		})
	}
	return err
}

// dynamodbURL is the URL of a store whose service is at an address.
func dynamodbURL(endpoint string) string {
	return "dynamodb://chaos?region=eu-central-1&endpoint=" + url.QueryEscape(endpoint)
}

func (d *dynamodb) url() string       { return dynamodbURL("http://" + d.wire.addr()) }
func (d *dynamodb) direct() string    { return dynamodbURL(d.server.URL()) }
func (d *dynamodb) front() string     { return "" }
func (d *dynamodb) clockFile() string { return "" }
func (d *dynamodb) plain() bool       { return true }
func (d *dynamodb) close() error      { return errors.Join(d.way.close(), d.server.Close()) }

func (d *dynamodb) busy(context.Context) string { return "" }

func (d *dynamodb) setClock(context.Context, time.Duration) error { return nil }

func (d *dynamodb) faults() []Fault {
	faults := []Fault{
		{"database-kill", func(ctx context.Context) error { return d.alone(ctx, d.world.die) }},
		{"database-pause", func(ctx context.Context) error { return d.alone(ctx, d.world.sleep) }},
	}
	for _, how := range wayTroubles {
		faults = append(faults, Fault{how.name, func(ctx context.Context) error { return d.way.suffer(ctx, how) }})
	}
	return append(faults, d.world.wireFaults("database", d.wire)...)
}

// alone does something to the server that nothing else may be done to at the time.
func (d *dynamodb) alone(ctx context.Context, do func(context.Context, machine) error) error {
	d.acts.Lock()
	defer d.acts.Unlock()
	return do(ctx, d.server)
}
