# The engine's own tests: plain C++, no torch, no Python.
#
#   make engine-test                         build and run
#   make engine-test TESTS="arena policy"    only the tests whose name contains one of the words
#   make sanitize                            the same with the address and undefined-behaviour sanitizers
#   make sanitize-threads                    the threads tests with the thread sanitizer
#
# Included from the top Makefile; also works alone: make -f tests/engine/engine.mk engine-test

ENGINE_CXX ?= g++
ENGINE_FLAGS := -std=c++20 -Wall -Wextra -Wpedantic -Wshadow -Werror -Icsrc -MMD -MP -pthread
ENGINE_SOURCES := $(addprefix csrc/,arena.cpp lineage.cpp policy.cpp engine.cpp room.cpp replay.cpp frugal.cpp schedule.cpp retire.cpp swap.cpp history.cpp follow.cpp page_file.cpp player.cpp) \
                  $(sort $(wildcard tests/engine/*.cpp))
ENGINE_OBJECTS := $(addsuffix .o,$(basename $(notdir $(ENGINE_SOURCES))))
TESTS ?=
ENGINE_COMMA := ,

.PHONY: engine-test sanitize sanitize-threads

engine-test: build/engine/tests
	timeout 300 $< $(TESTS)

sanitize: build/engine-sanitize/tests
	timeout 600 $< $(TESTS)

sanitize-threads: build/engine-threads/tests
	timeout 600 $< $(or $(TESTS),threads.)

# One set of rules for each build: directory, flags.
define engine_build
build/$(1)/tests: $(addprefix build/$(1)/,$(ENGINE_OBJECTS))
	$(ENGINE_CXX) $(ENGINE_FLAGS) $(2) $$^ -o $$@
build/$(1)/%.o: csrc/%.cpp
	@mkdir -p $$(@D)
	$(ENGINE_CXX) $(ENGINE_FLAGS) $(2) -c $$< -o $$@
build/$(1)/%.o: tests/engine/%.cpp
	@mkdir -p $$(@D)
	$(ENGINE_CXX) $(ENGINE_FLAGS) $(2) -c $$< -o $$@
-include $(addprefix build/$(1)/,$(ENGINE_OBJECTS:.o=.d))
endef

$(eval $(call engine_build,engine,-O2 -g))
$(eval $(call engine_build,engine-sanitize,-O1 -g -fno-omit-frame-pointer -fsanitize=address$(ENGINE_COMMA)undefined -fno-sanitize-recover=all))
$(eval $(call engine_build,engine-threads,-O1 -g -fsanitize=thread))
