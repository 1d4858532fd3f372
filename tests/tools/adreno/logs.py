"""Logs as the compiler prints them, shortened."""

# A loop of three turns with a read that is left out where the row is outside, for launches with an
# offset and for those without one.
LOOP = """\
MESA: info: NIR (final form) for CL shader (null):
MESA: info: impl __wrapped_gated_64 {
MESA: info:     con 32 %0 = load_const (0x00000000)
MESA: info: Native code for unnamed CL shader (null) with sha1 840b9ebf:
MESA: info: @in(r48.x)	in0 (wrmask=0x7)
MESA: info: shps #l2
MESA: info: (sy)(ss)shpe
MESA: info: l2:
MESA: info: end
MESA: info: ; CL prog 1/1: 400 instr, 91 nops, 97 non-nops, 28 mov, 5 cov, 232 dwords
MESA: info: ; CL prog 1/1: 0 last-baryf, 0 last-helper, 0 half, 13 full, 12 constlen
MESA: info: NIR (final form) for CL shader (null):
MESA: info: impl __wrapped_gated_64 {
MESA: info: Native code for unnamed CL shader (null) with sha1 7807bdbf:
MESA: info: @in(r48.x)	in0 (wrmask=0x7)
MESA: info: @const(c8.x)	0x00000040, 0x00000003, 0xd0d0d0d0, 0xd0d0d0d0
MESA: info: shps #l4
MESA: info: mov.u32u32 r0.w, c8.x
MESA: info: (rpt5)nop
MESA: info: (sy)(ss)shpe
MESA: info: l4:
MESA: info: (jp)mull.u r1.x, r48.x, c8.x
MESA: info: (nop3) add.u r1.x, r1.x, r0.x
MESA: info: mov.u32u32 r1.y, 0
MESA: info: l7:
MESA: info: add.u r1.z, r1.x, r1.y
MESA: info: (rpt1)nop
MESA: info: cmps.s.ge p0.x, r1.z, 127
MESA: info: br p0.x, #l13
MESA: info: cov.s32f32 (even)r2.x, r1.z
MESA: info: saml (f32)(xyzw)r3.x, r2.x, r0.w, s#0, t#0
MESA: info: (sy)(rpt3)mad.f32 r4.x, (r)r3.x, r2.x, (r)r4.x
MESA: info: l13:
MESA: info: (jp)add.u r1.y, r1.y, 1
MESA: info: (nop3) cmps.s.ge p0.x, r1.y, c8.y
MESA: info: br p0.x, #l18
MESA: info: stp.u32 p[r0.x], r4.x, 1
MESA: info: jump #l7
MESA: info: l18:
MESA: info: stib.b.typed.2d.f32.4.imm.base0 r4.x, r1.x, 32
MESA: info: (jp)end
MESA: info: nop
MESA: info: nop
MESA: info: ; CL: inputs: r48.x (SYSTEM_VALUE_WORKGROUP_ID slot=45 cm=7,il=0,b=0) r0.x (SYSTEM_VALUE_LOCAL_INVOCATION_ID slot=40 cm=7,il=0,b=0)
MESA: info: ; CL prog 2/1: 30 instr, 8 nops, 22 non-nops, 1 mov, 1 cov, 48 dwords
MESA: info: ; CL prog 2/1: 0 last-baryf, 0 last-helper, 2 half, 12 full, 0 constlen
"""  # noqa: E501 - as it is printed
