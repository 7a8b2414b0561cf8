package main

import (
	"context"
	"errors"
	"os"

	"github.com/onceward/onceward/internal/servers"
)

// startPrivate starts a server that nobody else uses, with the settings "name=value". Its data is in the directory given,
// if any: the server's own user has to be able to reach it.
func startPrivate(ctx context.Context, dir string, settings []string) (url string, stop func() error, err error) {
	if dir != "" {
		if err := os.Setenv("TMPDIR", dir); err != nil {
			return "", nil, err
		}
	}
	server, err := servers.StartPostgres(ctx, settings...)
	if err != nil {
		return "", nil, errors.Join(err, servers.CloseAll())
	}
	return server.URL(), servers.CloseAll, nil
}
