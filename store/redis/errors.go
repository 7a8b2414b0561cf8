package redis

import (
	"errors"
	"fmt"
	"strings"

	"github.com/onceward/onceward/store"
	"github.com/redis/rueidis"
)

var errClosed = errors.New("the store is closed")

// explanations describe what an operator can do about errors of the server, by the word at their beginning.
var explanations = []struct{ word, text string }{
	{"OOM", "the server is at its maxmemory, and must not evict keys: give it more memory"},
	{"WRONGTYPE", "a key of the store holds something else: use a prefix of its own"},
	{"NOPERM", "the user may not do this: docs/redis.md, Permissions, has those that the store and a front need"},
	{"NOAUTH", "the server requires a password"},
	{"WRONGPASS", "the server refuses the user or the password"},
	{"READONLY", "this is a replica, or was made one"},
	{"LOADING", "the server is loading its data"},
	{"MASTERDOWN", "the replica has lost its primary"},
	{"CLUSTERDOWN", "the cluster does not serve the slot now"},
	{"TRYAGAIN", "the slot is on its way to another node"},
	{"MISCONF", "the server cannot write to its disk, and takes no writes"},
	{"NOREPLICAS", "too few replicas are connected (min-replicas-to-write)"},
}

// unavailable wraps an error of the server, of the connection or of a context.
func unavailable(err error) error {
	switch {
	case err == nil, errors.Is(err, store.ErrUnavailable):
		return err
	case errors.Is(err, rueidis.ErrClosing):
		return fmt.Errorf("%w: redis: %w", store.ErrUnavailable, errClosed)
	}
	var reported *rueidis.RedisError
	if errors.As(err, &reported) {
		text := reported.Error()
		for _, e := range explanations {
			// An error inside a script contains the word after a description of the script.
			if strings.HasPrefix(text, e.word) || strings.Contains(text, "-"+e.word+" ") {
				return fmt.Errorf("%w: redis: %s: %w", store.ErrUnavailable, e.text, err)
			}
		}
	}
	return fmt.Errorf("%w: redis: %w", store.ErrUnavailable, err)
}

// unexpected returns the error for a reply that no script gives.
func unexpected(err error) error {
	if err == nil {
		err = errors.New("too short")
	}
	return fmt.Errorf("%w: redis: a reply that no script of the store gives: %w", store.ErrUnavailable, err)
}
