package client

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"net/http"
	"strings"
	"time"
)

// ErrBadKey is returned when the profile does not allow a key. Nothing was sent.
var ErrBadKey = errors.New("client: the idempotency key is not valid")

// NewKey returns a new key: a UUID of version 7, which is random except for the
// time at its beginning, so that stores that sort keys put new keys together.
func NewKey() string {
	var key [keyLength]byte
	putKey(&key)
	return string(key[:])
}

const keyLength = 36

// putKey writes a new key as text.
func putKey(key *[keyLength]byte) {
	var u [16]byte
	_, _ = rand.Read(u[6:]) // it never fails
	now := uint64(time.Now().UnixMilli())
	for i := range 6 {
		u[i] = byte(now >> (40 - 8*i))
	}
	u[6], u[8] = u[6]&0x0f|0x70, u[8]&0x3f|0x80
	hex.Encode(key[0:8], u[0:4])
	hex.Encode(key[9:13], u[4:6])
	hex.Encode(key[14:18], u[6:8])
	hex.Encode(key[19:23], u[8:10])
	hex.Encode(key[24:36], u[10:16])
	key[8], key[13], key[18], key[23] = '-', '-', '-', '-'
}

type keyContext struct{}

// WithKey returns a context whose requests are sent with this key, unless
// they carry a key in their header. Use the context for one operation only.
func WithKey(ctx context.Context, key string) context.Context {
	return context.WithValue(ctx, keyContext{}, key)
}

type resumedContext struct{}

// Resumed returns a context for an operation that was started before, perhaps by a process
// that no longer exists: the operation was first sent at firstSent, where its window
// begins, and may have been executed. The key comes from [WithKey] or from the header.
func Resumed(ctx context.Context, firstSent time.Time) context.Context {
	return context.WithValue(ctx, resumedContext{}, firstSent)
}

// KeyOf returns the key that the operation of a response was sent with, as the caller knows it: without quotes. It
// returns "" for a response that did not come from a [Transport]. For an error, the key is in [UnfinishedError].
func KeyOf(resp *http.Response) string {
	if op := operationOf(resp); op != nil {
		return op.key
	}
	return ""
}

// Key returns the key of a request, from its header or from [WithKey], and whether
// there is one. The error wraps [ErrBadKey] if the profile does not allow the key.
func (p *Profile) Key(req *http.Request) (key string, given bool, err error) {
	key, given, err = p.givenKey(req)
	if err == nil && given {
		_, err = p.encode(key)
	}
	return key, given, err
}

// givenKey returns the key of a request, from its header or from [WithKey], without a check of its characters.
func (p *Profile) givenKey(req *http.Request) (key string, given bool, err error) {
	switch lines := req.Header[p.Header]; len(lines) {
	case 0:
		key, given = req.Context().Value(keyContext{}).(string)
		return key, given, nil
	case 1:
		key, err = p.decode(lines[0])
		return key, true, err
	default:
		return "", true, badKey("it stands in %d lines of the header %s", len(lines), p.Header)
	}
}

// encode returns a key in the form that the profile requires in the header, or an error if the key is not allowed.
func (p *Profile) encode(key string) (string, error) {
	switch {
	case key == "":
		return "", badKey("it is empty")
	case len(key) > p.MaxLength:
		return "", badKey("it has %d characters, and %s allows %d", len(key), p.Name, p.MaxLength)
	}
	for i := range len(key) {
		if c := key[i]; c <= ' ' && !(c == ' ' && p.Quoted) || c > '~' {
			return "", badKey("it contains the byte 0x%02x", c)
		}
	}
	if !p.Quoted {
		return key, nil
	}
	return `"` + quoter.Replace(key) + `"`, nil
}

var quoter = strings.NewReplacer(`\`, `\\`, `"`, `\"`)

// decode reads a key from a header's value. A value without quotes is the key itself.
func (p *Profile) decode(value string) (string, error) {
	value = strings.Trim(value, " ")
	if !p.Quoted || !strings.HasPrefix(value, `"`) {
		return value, nil
	}
	var key strings.Builder
	for i := 1; i < len(value); i++ {
		switch c := value[i]; {
		case c == '"' && i == len(value)-1:
			return key.String(), nil
		case c == '\\' && i+1 < len(value)-1 && (value[i+1] == '"' || value[i+1] == '\\'):
			i++
			key.WriteByte(value[i])
		case c == '"' || c == '\\':
			return "", badKey("%s is not a quoted string", value)
		default:
			key.WriteByte(c)
		}
	}
	return "", badKey("%s is not a quoted string", value)
}
