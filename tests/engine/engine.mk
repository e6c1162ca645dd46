# The engine's own tests: plain C++, no torch, no Python.
#
#   make engine-test                         build and run
#   make engine-test TESTS="arena policy"    only the tests whose name contains one of the words
#   make sanitize                            the same with the address and undefined-behaviour sanitizers
#   make sanitize-threads                    the tests with several threads, with the thread sanitizer
#   make sanitize SANITIZE_ROUNDS=10         10 percent of the rounds of random tests, as in make test
#
# Included from the top Makefile; also works alone: make -f tests/engine/engine.mk engine-test

ENGINE_CXX ?= g++
ENGINE_FLAGS := -std=c++20 -Wall -Wextra -Wpedantic -Wshadow -Werror -iquote csrc -iquote tests/engine -MMD -MP -pthread
ENGINE_ITSELF := $(sort $(wildcard csrc/engine/*.cpp csrc/tiers/*.cpp)) csrc/simulate/player.cpp
ENGINE_THREADED := threads mover tiers transfers waiting
TESTS ?=
SANITIZE_ROUNDS ?= 100
ENGINE_COMMA := ,
vpath %.cpp csrc/engine csrc/tiers csrc/simulate tests/engine

.PHONY: engine-test sanitize sanitize-threads

engine-test: build/engine/tests
	timeout 300 $< $(TESTS)

sanitize: build/engine-sanitize/tests
	COOP_TEST_ROUNDS=$(SANITIZE_ROUNDS) timeout 900 $< $(TESTS)

sanitize-threads: build/engine-threads/tests
	COOP_TEST_ROUNDS=$(SANITIZE_ROUNDS) timeout 900 $< $(TESTS)

# One set of rules for each build: directory, sources, flags.
define engine_build
build/$(1)/tests: $(patsubst %.cpp,build/$(1)/%.o,$(notdir $(2)))
	$(ENGINE_CXX) $(ENGINE_FLAGS) $(3) $$^ -o $$@
build/$(1)/%.o: %.cpp
	@mkdir -p $$(@D)
	$(ENGINE_CXX) $(ENGINE_FLAGS) $(3) -c $$< -o $$@
-include $(patsubst %.cpp,build/$(1)/%.d,$(notdir $(2)))
endef

ENGINE_ALL := $(ENGINE_ITSELF) $(sort $(wildcard tests/engine/*.cpp))
$(eval $(call engine_build,engine,$(ENGINE_ALL),-O2 -g))
$(eval $(call engine_build,engine-sanitize,$(ENGINE_ALL),-O1 -g1 -fno-omit-frame-pointer -fsanitize=address$(ENGINE_COMMA)undefined -fno-sanitize-recover=all))
$(eval $(call engine_build,engine-threads,$(ENGINE_ITSELF) main.cpp $(ENGINE_THREADED:%=test_%.cpp),-O1 -g1 -fsanitize=thread))
