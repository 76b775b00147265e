// SPDX-License-Identifier: BSD-3-Clause

// Source of the precompiled header that all suites reuse.
