package redis

import (
	"context"
	_ "embed" // the scripts
	"strconv"
	"time"

	"github.com/redis/rueidis"
)

//go:embed script/reserve.lua
var reserveSource string

//go:embed script/settle.lua
var settleSource string

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
	reserveScript = rueidis.NewLuaScript(reserveSource)
	settleScript  = rueidis.NewLuaScript(settleSource)
	extendScript  = rueidis.NewLuaScript(extendSource)
	readScript    = rueidis.NewLuaScript(readSource)
	swapScript    = rueidis.NewLuaScript(swapSource)
	mendScript    = rueidis.NewLuaScript(mendSource)
)

// reading is what a script found at a moment of the server's clock.
type reading struct {
	now    time.Time
	stored string // empty if there is none
}

// run runs a script.
func (s *Store) run(ctx context.Context, script *rueidis.Lua, keys []string, args ...string) (rueidis.RedisMessage, error) {
	if err := ctx.Err(); err != nil {
		return rueidis.RedisMessage{}, unavailable(err)
	}
	message, err := script.Exec(ctx, s.client, keys, args).ToMessage()
	return message, unavailable(err)
}

// readingOf reads the reply of a script that found what it did not expect.
func readingOf(message *rueidis.RedisMessage) (*reading, error) {
	parts, err := message.ToArray()
	if err != nil || len(parts) == 0 {
		return nil, unexpected(err)
	}
	now, err := parts[0].AsInt64()
	if err != nil {
		return nil, unexpected(err)
	}
	found := &reading{now: time.UnixMicro(now).UTC()}
	if len(parts) > 1 && !parts[1].IsNil() {
		if found.stored, err = parts[1].ToString(); err != nil {
			return nil, unexpected(err)
		}
	}
	return found, nil
}

func number[T ~int | ~int64](n T) string { return strconv.FormatInt(int64(n), 10) }
