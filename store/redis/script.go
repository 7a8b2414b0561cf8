package redis

import (
	"context"
	"crypto/sha1"
	"embed"
	"encoding/hex"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

//go:embed script/*.lua
var sources embed.FS

// These are the scripts. Each is one atomic step of the server, whose effects reach its log and its replicas as one
// transaction. The flags in their first line make the server refuse them before they begin if they could not write: a
// replica does not even read possibly outdated data for them. Without memory it only runs scripts that free some, or
// that complete existing records.
var (
	// These are the scripts for records.
	batchScript  = newScript("batch", "note")
	settleScript = newScriptFrom(strings.Replace(batchScript.source, "#!lua", "#!lua flags=allow-oom", 1))
	extendScript = newScript("extend")
	swapScript   = newScript("swap", "note")
	readScript   = newScript("read").unacknowledged()
	clockScript  = newScript("clock").unacknowledged()
	awaitScript  = newScript("await").unacknowledged()
	mendScript   = newScript("mend").unacknowledged()
	countScript  = newScript("count").unacknowledged()
	// This is the script for a record's index by a provider's id.
	providerScript = newScript("provider", "note")
	// These are the scripts for the items beside the records.
	lateScript      = newScript("late")
	eventScript     = newScript("event")
	subjectScript   = newScript("subject")
	unsubjectScript = newScript("unsubject")
	forgetScript    = newScript("forget")
	auditScript     = newScript("audit")
	purgeScript     = newScript("purge")
	// Unlike an operator's act, an audited request waits until there is memory for it.
	executionScript = newScriptFrom(strings.Replace(auditScript.source, " flags=allow-oom", "", 1))
)

// script is a program that the server runs. It is called by its hash, and sent completely to a server that does not
// know it.
type script struct {
	source, hash string
	// unacked is set if no replica has to acknowledge what the script writes, if it writes at all.
	unacked bool
}

// newScript returns a script. The parts that it needs are inserted after its first line, which contains the server's
// flags.
func newScript(name string, parts ...string) *script {
	flags, body, _ := strings.Cut(readSource(name), "\n")
	for _, part := range parts {
		body = readSource(part) + body
	}
	return newScriptFrom(flags + "\n" + body)
}

func readSource(name string) string {
	source, err := sources.ReadFile("script/" + name + ".lua")
	if err != nil {
		panic(err) // it existed when the program was built
	}
	return string(source)
}

func newScriptFrom(source string) *script {
	sum := sha1.Sum([]byte(source))
	return &script{source: source, hash: hex.EncodeToString(sum[:])}
}

// unacknowledged marks a script that waits for no replica: it only reads, or its writes are repaired if they are lost.
func (p *script) unacknowledged() *script {
	p.unacked = true
	return p
}

// command returns the call of the script, by its hash or in full.
func (p *script) command(b rueidis.Builder, full bool, keys, args []string) rueidis.Completed {
	if full {
		return b.Eval().Script(p.source).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build()
	}
	return b.Evalsha().Sha1(p.hash).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build()
}

// run runs a script.
func (s *Store) run(ctx context.Context, p *script, keys []string, args ...string) (*rueidis.RedisMessage, error) {
	c := &call{kind: kindRun, script: p, keys: keys, args: args}
	err := s.sender.do(ctx, c)
	return &c.reply, err
}

// reading is a stored value at a moment of the server's clock.
type reading struct {
	now    time.Time
	stored string // empty if there is none
}

// readingOf decodes the reply of a script that found an unexpected record.
func readingOf(message *rueidis.RedisMessage) (*reading, error) {
	parts, err := message.ToArray()
	if err != nil || len(parts) != 2 {
		return nil, unexpected(err)
	}
	now, err := parts[0].AsInt64()
	if err != nil {
		return nil, unexpected(err)
	}
	return storedAt(now, &parts[1])
}

// storedAt returns the value in a message.
func storedAt(now int64, message *rueidis.RedisMessage) (*reading, error) {
	found := &reading{now: time.UnixMicro(now).UTC()}
	if message.IsNil() {
		return found, nil
	}
	var err error
	found.stored, err = message.ToString()
	return found, unavailable(err)
}

func number[T ~int | ~int64](n T) string { return strconv.FormatInt(int64(n), 10) }
