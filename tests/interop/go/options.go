package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/apache/rocketmq-client-go/v2/primitive"
)

// Options are the key=value arguments of a command.
type Options map[string]string

func parseOptions(words []string) (Options, error) {
	options := Options{}
	for _, word := range words {
		key, value, found := strings.Cut(word, "=")
		if !found || key == "" {
			return nil, fmt.Errorf("not key=value: %q", word)
		}
		options[key] = value
	}
	return options, nil
}

func (o Options) text(key, otherwise string) string {
	if value, given := o[key]; given {
		return value
	}
	return otherwise
}

// number is the integer value of an option; any other value ends the program, because only tests write them.
func (o Options) number(key string, otherwise int) int {
	value, given := o[key]
	if !given {
		return otherwise
	}
	number, err := strconv.Atoi(value)
	if err != nil {
		panic(fmt.Sprintf("option %s: %v", key, err))
	}
	return number
}

func (o Options) wait() time.Duration {
	return time.Duration(o.number("waitMs", 70_000)) * time.Millisecond
}

func (o Options) nameServers() primitive.NsResolver {
	return primitive.NewPassthroughResolver([]string{o["ns"]})
}

// credentials of an account, for brokers with access control.
func (o Options) credentials() primitive.Credentials {
	return primitive.Credentials{AccessKey: o["accessKey"], SecretKey: o["secretKey"]}
}

// instance is a client's own name: two clients of one process must not share a connection.
func instance(role string) string {
	return fmt.Sprintf("%s-%d", role, time.Now().UnixNano())
}
