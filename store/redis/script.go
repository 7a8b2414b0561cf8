package redis

import (
	"context"
	"crypto/sha1"
	_ "embed" // the scripts
	"encoding/hex"
	"strconv"
	"time"

	"github.com/redis/rueidis"
)

//go:embed script/batch.lua
var batchSource string

//go:embed script/extend.lua
var extendSource string

//go:embed script/read.lua
var readSource string

//go:embed script/swap.lua
var swapSource string

//go:embed script/mend.lua
var mendSource string

// The scripts. Each is one atomic step of the server, whose effects reach its log and its replicas as one transaction.
var (
	batchScript  = newScript(batchSource)
	extendScript = newScript(extendSource)
	readScript   = &script{readSource, newScript(readSource).hash, true}
	swapScript   = newScript(swapSource)
	mendScript   = newScript(mendSource)
)

// script is a program that the server runs. It is called by its hash, and sent again to a server that does not know it.
type script struct {
	source, hash string
	// reads says that the script never writes.
	reads bool
}

func newScript(source string) *script {
	sum := sha1.Sum([]byte(source))
	return &script{source: source, hash: hex.EncodeToString(sum[:])}
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

// reading is what was found at a moment of the server's clock.
type reading struct {
	now    time.Time
	stored string // empty if there is none
}

// readingOf reads the reply of a script that found what it did not expect.
func readingOf(message *rueidis.RedisMessage) (*reading, error) {
	parts, err := message.ToArray()
	if err != nil || len(parts) < 2 {
		return nil, unexpected(err)
	}
	now, err := parts[0].AsInt64()
	if err != nil {
		return nil, unexpected(err)
	}
	return storedAt(time.UnixMicro(now).UTC(), &parts[1])
}

// storedAt reads what is stored at a key.
func storedAt(now time.Time, message *rueidis.RedisMessage) (*reading, error) {
	if message.IsNil() {
		return &reading{now: now}, nil
	}
	stored, err := message.ToString()
	if err != nil {
		return nil, unavailable(err)
	}
	return &reading{now, stored}, nil
}

func number[T ~int | ~int64](n T) string { return strconv.FormatInt(int64(n), 10) }
