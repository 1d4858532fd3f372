# How the daemon itself is: once a second, from the thread that watches its loop.
#
# Layout rule: as in log.capnp, every ordinal is declared, in order, with its type. Kinds of faults,
# phases, stages and settings are names, so that a new one leaves the schema as it is.

@0xd8a3f1c6724b905e;

struct ModeldHealth @0xb4e19c7d2f6a8350 {
  # --- the process
  kind @0 :Text;                      # "driving" or "monitoring"
  versions @1 :List(Version);         # modeld first, then what it runs on
  processId @2 :UInt32;               # another one means that all counts began anew
  uptime @3 :Float64;                 # s since the process was started
  phase @4 :Text;                     # "starting", "waiting for cameras", "waiting for the car", "running"

  # --- the model
  model @5 :Text;                     # path of the artifact in use
  modelSha256 @6 :Text;               # of the artifact, hexadecimal; empty: not known
  checkpoints @7 :List(Checkpoint);   # of the model's files
  isFallback @8 :Bool;                # the fallback model is in use
  fallbackReason @9 :Text;            # why; empty while the primary model is in use
  device @10 :Text;                   # OpenCL device
  driver @11 :Text;                   # its driver, with all that a compiled kernel depends on
  selfTest @12 :SelfTest;             # of the model, at the start
  warmUpRunsLeft @13 :UInt32;         # runs until no history holds zeros of the start

  # --- frames, since the process was started
  frames @14 :UInt64;                 # used
  published @15 :UInt64;              # for which messages went out
  publishedValid @16 :UInt64;         # and were valid
  dropped @17 :UInt64;                # missing between those used
  frameId @18 :UInt32;                # of the last frame used
  publicationAge @19 :Float32;        # s since the last messages went out; -1: none has yet
  frameWait @20 :Float32;             # s for which a frame has waited for its messages; 0: none has
  runTime @21 :Float32;               # s for which the model's present run lasts; 0: it is not running
  invalidReasons @22 :List(Text);     # why the last messages were not valid; "frames not used: ..." comes first
  faults @23 :List(Fault);            # all kinds, also those that have not been seen
  recentTime @24 :Float32;            # s before this message that `recent` fields count
  recentPublished @25 :UInt32;        # frames published in recentTime
  stageBounds @26 :List(Float32);     # ms, upper bounds of all but the last bucket, increasing
  stages @27 :List(Stage);            # in the order in which a frame goes through them

  # --- what the process takes; 0: the system does not report it
  memory @28 :UInt64;                 # bytes resident
  memoryPeak @29 :UInt64;             # bytes, the most that was resident
  openFiles @30 :UInt32;              # descriptors
  threads @31 :UInt32;                # of the process
  cpuTime @32 :Float64;               # s, of all threads, in user and system mode
  majorFaults @33 :UInt64;            # pages that had to be read from disk
  temperatures @34 :List(Temperature);  # the 16 hottest sensors, read every 10 s
  realtime @35 :List(Setting);        # settings of [realtime] that were asked for
  startProblems @36 :List(Text);      # models that should be in use and cannot be

  # --- where the model came from
  programSha256 @37 :Text;            # of the program, hexadecimal: equal in all artifacts that hold it; empty: not known
  lineage @38 :List(Note);            # where the model came from, as its artifact has it

  struct Version {
    name @0 :Text;                    # of the program or library
    version @1 :Text;                 # its version
  }

  struct Checkpoint {
    role @0 :Text;                    # "vision", "policy", ...
    name @1 :Text;                    # what the model's exporter calls its weights
  }

  struct Note {
    name @0 :Text;                    # "commit", "vision.producer", ...
    value @1 :Text;                   # text
  }

  struct SelfTest {
    result @0 :Result;                # notDone: no vectors, or not run yet
    duration @1 :Float32;             # ms
    detail @2 :Text;                  # why it failed or was not done

    enum Result {
      notDone @0;
      passed @1;
      failed @2;
    }
  }

  struct Fault {
    name @0 :Text;                    # as in docs/faults.md
    count @1 :UInt64;                 # since the process was started
    recent @2 :UInt32;                # in the last `recentTime`
  }

  # Durations of one stage of a frame since the process was started.
  struct Stage {
    name @0 :Text;                    # "wait", "inputs", "model", "publish"
    counts @1 :List(UInt32);          # durations up to each of stageBounds, then those beyond
    sum @2 :Float64;                  # ms
  }

  struct Temperature {
    name @0 :Text;                    # of the sensor
    degrees @1 :Float32;              # deg C
  }

  # Something that was asked of the system.
  struct Setting {
    name @0 :Text;                    # key in the configuration
    wanted @1 :Text;                  # value that was asked for
    effective @2 :Bool;               # it is in force
    reason @3 :Text;                  # why not
  }
}
