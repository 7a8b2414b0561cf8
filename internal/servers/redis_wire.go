package servers

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// RedisError is a server's error reply, as in "MOVED 3999 127.0.0.1:6381".
type RedisError string

// Error returns the server's text.
func (e RedisError) Error() string { return string(e) }

// askRedis sends commands on its own connection and returns the reply to the last one: a string, an
// int64, nil, a RedisError, or a slice of these. This package therefore needs no client library.
func askRedis(ctx context.Context, address string, commands ...[]string) (reply any, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	conn, err := dialRedis(ctx, address)
	if err != nil {
		return nil, err
	}
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	defer conn.Close()
	in := bufio.NewReader(conn)
	for _, command := range commands {
		if _, err := conn.Write(encodeCommand(command...)); err != nil {
			return nil, errors.Join(ctx.Err(), err)
		}
		if reply, err = readRESP(in, nil); err != nil {
			return nil, errors.Join(ctx.Err(), err)
		}
		if failure, failed := reply.(RedisError); failed {
			return nil, failure
		}
	}
	return reply, nil
}

// dialRedis connects to the server in a URL, with encryption if the URL requires it.
func dialRedis(ctx context.Context, address string) (net.Conn, error) {
	parsed, err := url.Parse(address)
	if err != nil {
		return nil, err
	}
	dial, port := new(net.Dialer).DialContext, "6379"
	if parsed.Scheme == "rediss" {
		dial = new(tls.Dialer).DialContext
	}
	if parsed.Port() != "" {
		port = parsed.Port()
	}
	return dial(ctx, "tcp", net.JoinHostPort(parsed.Hostname(), port))
}

// redisGreeting returns the first commands of a connection to a URL: for its user and its database.
func redisGreeting(address string) (commands [][]string) {
	parsed, err := url.Parse(address)
	if err != nil {
		return nil // the connection attempt fails too
	}
	if password, ok := parsed.User.Password(); ok && parsed.User.Username() != "" {
		commands = append(commands, []string{"AUTH", parsed.User.Username(), password})
	} else if ok {
		commands = append(commands, []string{"AUTH", password})
	}
	if database := strings.Trim(parsed.Path, "/"); database != "" {
		commands = append(commands, []string{"SELECT", database})
	}
	return commands
}

// encodeCommand encodes a command.
func encodeCommand(words ...string) []byte {
	text := fmt.Appendf(nil, "*%d\r\n", len(words))
	for _, word := range words {
		text = fmt.Appendf(text, "$%d\r\n%s\r\n", len(word), word)
	}
	return text
}

// readRESP reads one value of Redis' protocol, version 2 or 3. If raw is not nil, it appends the bytes to raw.
func readRESP(in *bufio.Reader, raw *[]byte) (value any, err error) {
	line, err := in.ReadBytes('\n')
	if raw != nil {
		*raw = append(*raw, line...)
	}
	if err != nil {
		return nil, err
	}
	if len(line) < 3 {
		return nil, fmt.Errorf("servers: this is no RESP: %q", line)
	}
	kind, text := line[0], string(line[1:len(line)-2])
	switch kind {
	case '-':
		return RedisError(text), nil
	case '_':
		return nil, nil
	case ':':
		return strconv.ParseInt(text, 10, 64)
	case '$', '=', '!', '*', '~', '>', '%':
		size, err := strconv.Atoi(text)
		if err != nil || size < 0 {
			return nil, err
		}
		return readRESPBody(in, raw, kind, size)
	default: // texts, other numbers, booleans
		return text, nil
	}
}

// readRESPBody reads the part of a value after the line with its length.
func readRESPBody(in *bufio.Reader, raw *[]byte, kind byte, size int) (any, error) {
	switch kind {
	case '*', '~', '>', '%':
		if kind == '%' { // a map: keys and values
			size *= 2
		}
		values := make([]any, 0, size)
		for range size {
			value, err := readRESP(in, raw)
			if err != nil {
				return nil, err
			}
			values = append(values, value)
		}
		return values, nil
	default:
		body := make([]byte, size+2)
		if _, err := io.ReadFull(in, body); err != nil {
			return nil, err
		}
		if raw != nil {
			*raw = append(*raw, body...)
		}
		if kind == '!' {
			return RedisError(body[:size]), nil
		}
		return string(body[:size]), nil
	}
}
