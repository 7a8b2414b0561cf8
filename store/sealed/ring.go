package sealed

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"sync"

	"github.com/klauspost/compress/zstd"
)

const (
	secretSize = 32
	nonceSize  = 12
	tagSize    = 16
	// maxContent is the largest content that is sealed or opened: the largest answer that a route may store, with its
	// header. Compressed content that decompresses to more is refused.
	maxContent = 257 << 20
	// These labels separate the keys that are derived here from each other, and from keys that other code may derive
	// from the same secret.
	forContent = "onceward sealed content, version 1"
	forNonces  = "onceward sealed nonces, version 1"
)

// ring seals with its first key and opens with all.
type ring struct {
	first        *key
	keys         map[uint32]*key
	compressFrom int // negative for never
	max          int
	encoder      *zstd.Encoder
	decoder      *zstd.Decoder
}

// key derives the keys and nonces of values.
type key struct {
	id               uint32
	contents, nonces macs
}

func newKey(k Key) (*key, error) {
	contents, err := hkdf.Extract(sha256.New, k.Secret, []byte(forContent))
	if err != nil {
		return nil, fmt.Errorf("key %d: %w", k.ID, err)
	}
	nonces, err := hkdf.Extract(sha256.New, k.Secret, []byte(forNonces))
	if err != nil {
		return nil, fmt.Errorf("key %d: %w", k.ID, err)
	}
	return &key{id: k.ID, contents: newMACs(contents), nonces: newMACs(nonces)}, nil
}

// macs is a pool of HMACs under one key: making an HMAC costs about as much as using it.
type macs struct{ pool *sync.Pool }

// mac is an HMAC and room for its sum.
type mac struct {
	hash.Hash
	sum [sha256.Size]byte
}

func newMACs(key []byte) macs {
	return macs{&sync.Pool{New: func() any { return &mac{Hash: hmac.New(sha256.New, key)} }}}
}

// sum returns the HMAC of two parts in sequence.
func (m macs) sum(first, second []byte) [sha256.Size]byte {
	mac := m.pool.Get().(*mac)
	defer m.pool.Put(mac)
	mac.Reset()
	mac.Write(first)
	mac.Write(second)
	mac.Sum(mac.sum[:0])
	return mac.sum
}

func newRing(keys []Key, compressFrom int) (*ring, error) {
	if len(keys) == 0 {
		return nil, errors.New("Config.Keys is empty: the first key seals, and all of them open")
	}
	r := &ring{keys: make(map[uint32]*key, len(keys)), compressFrom: compressFrom, max: maxContent}
	for _, k := range keys {
		if len(k.Secret) != secretSize {
			return nil, fmt.Errorf("the secret of key %d has %d bytes, and %d random ones are needed", k.ID, len(k.Secret),
				secretSize)
		}
		if r.keys[k.ID] != nil {
			return nil, fmt.Errorf("key %d is there twice: each secret has an id of its own, for ever", k.ID)
		}
		var err error
		if r.keys[k.ID], err = newKey(k); err != nil {
			return nil, err
		}
	}
	r.first = r.keys[keys[0].ID]
	var err error
	r.encoder, err = zstd.NewWriter(nil, zstd.WithEncoderCRC(false), zstd.WithLowerEncoderMem(true),
		zstd.WithEncoderLevel(zstd.SpeedDefault), zstd.WithWindowSize(1<<20))
	if err == nil {
		err = r.limit(maxContent)
	}
	return r, err
}

// limit sets the largest content.
func (r *ring) limit(size int) (err error) {
	r.max = size
	r.decoder, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxMemory(uint64(size)))
	return err
}

// seal returns the sealed value of content for a binding. The same content for the same binding under the same key
// gives the same bytes: stores compare them to recognise a repeated settlement.
func (r *ring) seal(b binding, content []byte) ([]byte, error) {
	if len(content) > r.max {
		return nil, fmt.Errorf("sealed: %d bytes of content: the most is %d", len(content), r.max)
	}
	h := head{key: r.first.id, kept: b.kept, attempt: b.attempt}
	if r.compressFrom >= 0 && len(content) >= r.compressFrom {
		if packed := r.encoder.EncodeAll(content, make([]byte, 0, len(content)/2)); len(packed) < len(content) {
			content, h.compressed = packed, true
		}
	}
	value := h.append(make([]byte, 0, maxHead+nonceSize+len(content)+tagSize))
	data := b.appendTo(value)
	gcm, err := r.first.gcm(data)
	if err != nil {
		return nil, err
	}
	nonce := r.first.nonces.sum(data, content)
	value = append(value, nonce[:nonceSize]...)
	return gcm.Seal(value, value[len(value)-nonceSize:], content, data), nil
}

// open returns the content of a value that was sealed for the binding, and the attempt that it was sealed for if the
// value contains the attempt.
func (r *ring) open(b binding, value []byte) (content []byte, attempt int64, err error) {
	h, rest, err := parseHead(value)
	if err != nil {
		return nil, 0, err
	}
	key := r.keys[h.key]
	switch {
	case key == nil:
		return nil, 0, unreadable(fmt.Sprintf("it is sealed with key %d, which is not in the key ring", h.key))
	case h.kept != b.kept || len(rest) < nonceSize+tagSize:
		return nil, 0, errBroken
	}
	data := b.appendTo(value[:len(value)-len(rest)])
	gcm, err := key.gcm(data)
	if err != nil {
		return nil, 0, err
	}
	content, err = gcm.Open(nil, rest[:nonceSize], rest[nonceSize:], data)
	if err != nil {
		return nil, 0, errBroken
	}
	if h.compressed {
		if content, err = r.decoder.DecodeAll(content, nil); err != nil {
			return nil, 0, unreadable("its content cannot be decompressed: " + err.Error())
		}
	}
	return content, h.attempt, nil
}

// errBroken is returned for a value that was changed, or that was sealed for another place. The two cases cannot be
// distinguished.
var errBroken = unreadable("its seal is broken: it was changed, or belongs to another scope, key, attempt or status")

// firstBlock is the number of the only block that is expanded.
var firstBlock = []byte{1}

// gcm returns the cipher for one place: no two places share a key, so a nonce needs to be unique only within its place.
// Its key is HKDF-Expand of 32 bytes with the place as info (RFC 5869).
func (k *key) gcm(place []byte) (cipher.AEAD, error) {
	secret := k.contents.sum(place, firstBlock)
	block, err := aes.NewCipher(secret[:])
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}
