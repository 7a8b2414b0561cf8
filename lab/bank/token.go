package bank

import (
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"strings"
)

var errToken = errors.New("the token is not valid")

// tokens makes and checks the tokens of users who have logged in.
type tokens struct{ secret []byte }

// create returns a token, which is another one each time.
func (t tokens) create(user string) string {
	claims := base64.RawURLEncoding.EncodeToString([]byte(user + "|" + rand.Text()))
	return claims + "." + t.sign(claims)
}

// user returns whose token it is.
func (t tokens) user(token string) (string, error) {
	claims, signature, _ := strings.Cut(token, ".")
	if !hmac.Equal([]byte(signature), []byte(t.sign(claims))) {
		return "", errToken
	}
	text, err := base64.RawURLEncoding.DecodeString(claims)
	user, _, found := strings.Cut(string(text), "|")
	if err != nil || !found {
		return "", errToken
	}
	return user, nil
}

func (t tokens) sign(claims string) string {
	mac := hmac.New(sha256.New, t.secret)
	mac.Write([]byte(claims))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

const saltSize = 16

// hash returns the hash of a password, with a salt in front.
func hash(password string) ([]byte, error) {
	salt := make([]byte, saltSize)
	_, _ = rand.Read(salt) // it never fails
	return hashWith(salt, password)
}

func hashWith(salt []byte, password string) ([]byte, error) {
	sum, err := pbkdf2.Key(sha256.New, password, salt, 1000, sha256.Size)
	return append(salt[:saltSize:saltSize], sum...), err
}

// matches reports whether a password has a hash.
func matches(hashed []byte, password string) bool {
	again, err := hashWith(hashed[:saltSize], password)
	return err == nil && subtle.ConstantTimeCompare(hashed, again) == 1
}
