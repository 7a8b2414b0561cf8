package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/onceward/onceward/cmd/onceward/internal/operate"
	"github.com/onceward/onceward/cmd/onceward/internal/output"
	"github.com/onceward/onceward/store/sealed"
)

// storeFlags are the flags of every command that opens a store.
type storeFlags struct {
	Store   string        `env:"ONCEWARD_STORE" placeholder:"URL" group:"Store" help:"The store: postgres://user@host/database, mysql://user@host/database, sqlite:PATH, redis://host:6379/0 or dynamodb://TABLE, with ?front=URL if the service has one."`
	Timeout time.Duration `default:"30s" group:"Store" help:"How long the store may take to answer, for each page of a list; 0: no limit."`
	JSON    bool          `name:"json" group:"Store" help:"Write JSON: an object, or for a list one a line."`
}

// deadline returns a context that ends after the time limit of the command.
func (f *storeFlags) deadline(ctx context.Context) (context.Context, context.CancelFunc) {
	if f.Timeout <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, f.Timeout)
}

// with opens a store, calls work, and closes the store.
func (f *storeFlags) with(
	ends interrupts, target operate.Target, work func(context.Context, *operate.Session) error,
) error {
	ctx, cancel := f.deadline(ends.first)
	defer cancel()
	s, err := operate.Open(ctx, target)
	if err != nil {
		return f.late(ctx, err)
	}
	defer s.Close()
	return f.late(ctx, work(ctx, s))
}

// late adds to a time-out how to wait for longer.
func (f *storeFlags) late(ctx context.Context, err error) error {
	if err == nil || !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return err
	}
	return fmt.Errorf("the store did not answer within %s: see whether it is well, or give --timeout more: %w",
		f.Timeout, errors.Join(context.DeadlineExceeded, err))
}

// watchFlags are the flags of commands that can repeat.
type watchFlags struct {
	Watch bool          `group:"Watching" help:"Repeat until Ctrl-C."`
	Every time.Duration `default:"2s" group:"Watching" help:"How often with --watch."`
}

// draw draws once, or repeatedly with --watch.
func (f *watchFlags) draw(
	ends interrupts, from *storeFlags, target operate.Target, out io.Writer,
	draw func(context.Context, *operate.Session, *output.Output) error,
) error {
	screen := output.New(out, from.JSON)
	if !f.Watch {
		return from.with(ends, target, func(ctx context.Context, s *operate.Session) error { return draw(ctx, s, screen) })
	}
	if f.Every < 100*time.Millisecond {
		return operate.Usage("--every %s: take 100ms at least", f.Every)
	}
	opening, cancel := from.deadline(ends.first)
	defer cancel()
	s, err := operate.Open(opening, target)
	if err != nil {
		return err
	}
	defer s.Close()
	return screen.Watch(ends.first, f.Every, func(out *output.Output) error {
		ctx, cancel := from.deadline(ends.first)
		defer cancel()
		if err := s.Refresh(ctx); err != nil {
			return err
		}
		return draw(ctx, s, out)
	})
}

// secretFlags are the parts of the service's configuration that downstream keys and sealed content need.
type secretFlags struct {
	SecretFile           string   `type:"path" placeholder:"FILE" group:"Secrets of the service" help:"File with the service's Config.Secret, for downstream keys. Default: $ONCEWARD_SECRET."`
	DownstreamSecretFile string   `type:"path" placeholder:"FILE" group:"Secrets of the service" help:"File with its Config.DownstreamSecret, if set. Default: $ONCEWARD_DOWNSTREAM_SECRET."`
	OldSecretFiles       []string `name:"old-secret-file" type:"path" placeholder:"FILE" group:"Secrets of the service" help:"File with a rotated-out secret of either kind. Repeatable. Default: $ONCEWARD_OLD_SECRET."`
	Namespace            string   `env:"ONCEWARD_NAMESPACE" group:"Secrets of the service" help:"Its Config.Namespace."`
	SealKeyFile          string   `type:"path" placeholder:"FILE" group:"Secrets of the service" help:"The key ring of a sealed store: a line ID:BASE64 for each key, the current one first."`
}

func (f *secretFlags) target(url string) (operate.Target, error) {
	target := operate.Target{URL: url, Secrets: operate.Secrets{Namespace: f.Namespace}}
	var err error
	if target.Secrets.Secret, err = secret(f.SecretFile, "ONCEWARD_SECRET"); err != nil {
		return target, err
	}
	if target.Secrets.Downstream, err = secret(f.DownstreamSecretFile, "ONCEWARD_DOWNSTREAM_SECRET"); err != nil {
		return target, err
	}
	if target.Secrets.Old, err = f.oldSecrets(); err != nil {
		return target, err
	}
	target.SealKeys, err = sealKeys(f.SealKeyFile)
	return target, err
}

// oldSecrets reads the secrets that were rotated out.
func (f *secretFlags) oldSecrets() (old [][]byte, err error) {
	files := f.OldSecretFiles
	if len(files) == 0 && os.Getenv("ONCEWARD_OLD_SECRET") != "" {
		files = []string{""}
	}
	for _, file := range files {
		one, err := secret(file, "ONCEWARD_OLD_SECRET")
		if err != nil {
			return nil, err
		}
		old = append(old, one)
	}
	return old, nil
}

// secret reads a secret from a file, or else from the environment. A line break at its end is removed: editors add it.
func secret(file, variable string) ([]byte, error) {
	if file == "" {
		return []byte(os.Getenv(variable)), nil
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, operate.Usage("the secret cannot be read: %v", err)
	}
	return bytes.TrimRight(content, "\r\n"), nil
}

// sealKeys reads a key ring.
func sealKeys(file string) ([]sealed.Key, error) {
	if file == "" {
		return nil, nil
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, operate.Usage("the key ring cannot be read: %v", err)
	}
	var keys []sealed.Key
	for number, line := range strings.Split(string(content), "\n") {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		id, encoded, _ := strings.Cut(line, ":")
		parsed, err := strconv.ParseUint(strings.TrimSpace(id), 10, 32)
		secret, decodeErr := base64.StdEncoding.DecodeString(strings.TrimSpace(encoded))
		if err != nil || decodeErr != nil {
			return nil, operate.Usage("line %d of %s is not ID:BASE64, such as 1:MDEy…", number+1, file)
		}
		keys = append(keys, sealed.Key{ID: uint32(parsed), Secret: secret})
	}
	if len(keys) == 0 {
		return nil, operate.Usage("%s holds no key: write a line ID:BASE64 for each, the current one first", file)
	}
	return keys, nil
}

// pageFlags bound a list.
type pageFlags struct {
	Limit int    `default:"50" group:"Page" help:"The most to list."`
	After string `placeholder:"CURSOR" group:"Page" help:"Continue after the cursor that the previous page printed."`
}

func (f *pageFlags) check() error {
	if f.Limit < 1 {
		return operate.Usage("--limit must be at least 1")
	}
	return nil
}

// refFlags name a record.
type refFlags struct {
	Ref   string   `arg:"" help:"The operation: its hash in logs, a key with --scope, a provider's id, or a downstream key."`
	Scope *string  `group:"Naming the operation" help:"The scope of a key: REF is then a key."`
	By    string   `enum:",hash,key,downstream,provider" default:"" group:"Naming the operation" help:"What REF is, if ambiguous: hash, key, downstream or provider."`
	Steps []string `name:"step-name" placeholder:"NAME" group:"Naming the operation" help:"A step's name: keys show shows its downstream key. Repeatable."`
}

func (f *refFlags) ref() operate.Ref {
	return operate.Ref{Text: f.Ref, By: f.By, Scope: f.Scope, Steps: f.Steps}
}

// suffix returns the flag that names the store, for commands to paste. A URL that may contain a password is left out.
func (f *storeFlags) suffix() string {
	switch {
	case f.Store == os.Getenv("ONCEWARD_STORE"):
		return ""
	case strings.Contains(f.Store, "@") && strings.Count(f.Store, ":") > 1 || strings.Contains(f.Store, "password"):
		return " --store URL"
	default:
		return " --store " + output.Shell(f.Store)
	}
}

// number returns a number for people; nothing for zero.
func number(n int64) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatInt(n, 10)
}
