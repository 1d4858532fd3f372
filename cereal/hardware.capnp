# Messages about the device and the car's interface: sensors, pandas, processes, sound, input.
#
# Layout rule: as in log.capnp, every ordinal is declared, in order, with its type.

@0xe4b8a0b27a9d35c7;

using Car = import "car.capnp";

# pandaStates, 10 Hz: the interface to the car's CAN buses, one per panda.
struct PandaState @0xa7649e2575e4591e {
  voltage @0 :UInt32;                 # mV
  current @1 :UInt32;                 # mA
  ignitionLine @2 :Bool;
  controlsAllowed @3 :Bool;           # the safety firmware lets commands pass
  gasInterceptorDetected @4 :Bool;    # @4..@6 retired
  startedSignalDetected @5 :Bool;
  hasGps @6 :Bool;
  rxBufferOverflow @7 :UInt32;
  txBufferOverflow @8 :UInt32;
  gmlanSendErrs @9 :UInt32;           # retired
  pandaType @10 :PandaType;
  fanSpeedRpm @11 :UInt16;            # retired
  usbPowerMode @12 :UsbPowerMode;     # retired
  ignitionCan @13 :Bool;
  safetyModel @14 :Car.CarParams.SafetyModel;
  faultStatus @15 :FaultStatus;
  powerSaveEnabled @16 :Bool;
  uptime @17 :UInt32;                 # s
  faults @18 :List(FaultType);
  safetyRxInvalid @19 :UInt32;
  safetyParamRetired @20 :Int16;      # retired
  harnessStatus @21 :HarnessStatus;
  heartbeatLost @22 :Bool;
  alternativeExperience @23 :Int16;
  safetyTxBlocked @24 :UInt32;
  interruptLoad @25 :Float32;
  safetyParam2 @26 :UInt32;           # retired
  safetyParam @27 :UInt16;
  fanPower @28 :UInt8;                # %
  canState0 @29 :PandaCanState;
  canState1 @30 :PandaCanState;
  canState2 @31 :PandaCanState;
  safetyRxChecksInvalid @32 :Bool;
  spiErrorCount @33 :UInt16;          # spiChecksumErrorCount in 2025
  fanStallCount @34 :UInt8;           # retired 2026
  sbu1Voltage @35 :Float32;           # V
  sbu2Voltage @36 :Float32;
  soundOutputLevel @37 :UInt16;
  controlsAllowedReserved1 @38 :Bool; # @38 and @39: for forks
  controlsAllowedReserved2 @39 :Bool;
  nmiReset @40 :Bool;
  hardfaultReset @41 :Bool;

  enum FaultStatus {
    none @0;
    faultTemp @1;
    faultPerm @2;
  }

  enum FaultType {
    relayMalfunction @0;
    unusedInterruptHandled @1;
    interruptRateCan1 @2;
    interruptRateCan2 @3;
    interruptRateCan3 @4;
    interruptRateTach @5;
    interruptRateGmlan @6;            # retired
    interruptRateInterrupts @7;
    interruptRateSpiDma @8;
    interruptRateSpiCs @9;
    interruptRateUart1 @10;
    interruptRateUart2 @11;
    interruptRateUart3 @12;
    interruptRateUart5 @13;
    interruptRateUartDma @14;
    interruptRateUsb @15;
    interruptRateTim1 @16;
    interruptRateTim3 @17;
    registerDivergent @18;
    interruptRateKlineInit @19;
    interruptRateClockSource @20;
    interruptRateTick @21;
    interruptRateExti @22;
    interruptRateSpi @23;
    interruptRateUart7 @24;
    sirenMalfunction @25;
    heartbeatLoopWatchdog @26;
  }

  enum PandaType @0x8a58adf93e5b3751 {
    unknown @0;
    whitePanda @1;
    greyPanda @2;
    blackPanda @3;
    pedal @4;
    uno @5;
    dos @6;
    redPanda @7;
    redPandaV2 @8;
    tres @9;
    cuatro @10;
  }

  enum HarnessStatus {
    notConnected @0;
    normal @1;
    flipped @2;
  }

  enum UsbPowerMode @0xa8883583b32c9877 {
    none @0;
    client @1;
    cdp @2;
    dcp @3;
  }

  # Health of one CAN controller.
  struct PandaCanState {
    busOff @0 :Bool;
    busOffCnt @1 :UInt32;
    errorWarning @2 :Bool;
    errorPassive @3 :Bool;
    lastError @4 :LecErrorCode;
    lastStoredError @5 :LecErrorCode;
    lastDataError @6 :LecErrorCode;
    lastDataStoredError @7 :LecErrorCode;
    receiveErrorCnt @8 :UInt8;
    transmitErrorCnt @9 :UInt8;
    totalErrorCnt @10 :UInt32;
    totalTxLostCnt @11 :UInt32;
    totalRxLostCnt @12 :UInt32;
    totalTxCnt @13 :UInt32;
    totalRxCnt @14 :UInt32;
    totalFwdCnt @15 :UInt32;
    canSpeed @16 :UInt16;             # kbit/s
    canDataSpeed @17 :UInt16;         # kbit/s
    canfdEnabled @18 :Bool;
    brsEnabled @19 :Bool;
    canfdNonIso @20 :Bool;
    irq0CallRate @21 :UInt32;         # 1/s
    irq1CallRate @22 :UInt32;
    irq2CallRate @23 :UInt32;
    canCoreResetCnt @24 :UInt32;

    enum LecErrorCode {
      noError @0;
      stuffError @1;
      formError @2;
      ackError @3;
      bit1Error @4;
      bit0Error @5;
      crcError @6;
      noChange @7;
    }
  }
}

struct PeripheralState @0xceb8f49734857a88 {
  pandaType @0 :PandaState.PandaType;
  voltage @1 :UInt32;                 # mV
  current @2 :UInt32;                 # mA
  fanSpeedRpm @3 :UInt16;
  usbPowerMode @4 :PandaState.UsbPowerMode;  # retired
}

# What is plugged in by USB (2026).
struct UsbState @0x8b644b0be77bac9f {
  devices @0 :List(Device);
  connected @1 :Bool;

  struct Device {
    busnum @0 :UInt8;
    devnum @1 :UInt8;
    vendorId @2 :UInt16;
    productId @3 :UInt16;
    speedMbps @4 :UInt16;             # Mbit/s
    product @5 :Text;
    manufacturer @6 :Text;
    linkErrorCount @7 :UInt16;
    usb3Lane @8 :Usb3Lane;

    enum Usb3Lane {
      unknown @0;
      a @1;
      b @2;
    }
  }
}

# accelerometer, gyroscope, magnetometer, ...: one sample of one sensor, in the sensor's own axes.
struct SensorEventData @0xa2b29a69d44529a1 {
  version @0 :Int32;                  # @0..@2 retired
  sensor @1 :Int32;
  type @2 :Int32;
  timestamp @3 :Int64;                # ns
  union {
    acceleration @4 :SensorVec;       # m/s^2
    magnetic @5 :SensorVec;           # uT
    orientation @6 :SensorVec;
    gyro @7 :SensorVec;               # rad/s
    pressure @9 :SensorVec;
    magneticUncalibrated @11 :SensorVec;
    gyroUncalibrated @12 :SensorVec;  # rad/s
    proximity @13 :Float32;
    light @14 :Float32;
    temperature @15 :Float32;         # degrees Celsius
  }
  source @8 :SensorSource;
  uncalibrated @10 :Bool;             # retired

  struct SensorVec {
    v @0 :List(Float32);
    status @1 :Int8;                  # retired
  }

  enum SensorSource {
    android @0;
    iOS @1;
    fiber @2;
    velodyne @3;
    bno055 @4;
    lsm6ds3 @5;
    bmp280 @6;
    mmc3416x @7;
    bmx055 @8;
    rpr0521 @9;
    lsm6ds3trc @10;
    mmc5603nj @11;
  }
}

# 0.5 Hz: what runs on the device and what it uses.
struct ProcLog @0xaf85387b3f681406 {
  cpuTimes @0 :List(CPUTimes);
  mem @1 :Mem;
  procs @2 :List(Process);

  struct Process {
    pid @0 :Int32;
    name @1 :Text;
    state @2 :UInt8;                  # the letter of /proc/PID/stat
    ppid @3 :Int32;
    cpuUser @4 :Float32;              # s, since its start
    cpuSystem @5 :Float32;
    cpuChildrenUser @6 :Float32;
    cpuChildrenSystem @7 :Float32;
    priority @8 :Int64;
    nice @9 :Int32;
    numThreads @10 :Int32;
    startTime @11 :Float64;           # s since boot
    memVms @12 :UInt64;               # bytes
    memRss @13 :UInt64;               # bytes
    processor @14 :Int32;
    cmdline @15 :List(Text);
    exe @16 :Text;
    memPss @17 :UInt64;               # bytes; shared pages count by their share (2026)
    memPssAnon @18 :UInt64;
    memPssShmem @19 :UInt64;
  }

  struct CPUTimes {                   # s since boot
    cpuNum @0 :Int64;
    user @1 :Float32;
    nice @2 :Float32;
    system @3 :Float32;
    idle @4 :Float32;
    iowait @5 :Float32;
    irq @6 :Float32;
    softirq @7 :Float32;
  }

  struct Mem {                        # bytes
    total @0 :UInt64;
    free @1 :UInt64;
    available @2 :UInt64;
    buffers @3 :UInt64;
    cached @4 :UInt64;
    active @5 :UInt64;
    inactive @6 :UInt64;
    shared @7 :UInt64;
  }
}

struct Clocks @0xc95fb49a7bdc4618 {
  bootTimeNanos @0 :UInt64;           # @0..@2 retired
  monotonicNanos @1 :UInt64;
  monotonicRawNanos @2 :UInt64;
  wallTimeNanos @3 :UInt64;           # ns since 1970, UTC
  modemUptimeMillis @4 :UInt64;       # retired
}

# androidLog (operatingSystemLog in 2026): one line of the system's log.
struct AndroidLogEntry @0xea095da1894f7d85 {
  id @0 :UInt8;
  ts @1 :UInt64;                      # ns
  priority @2 :UInt8;
  pid @3 :Int32;
  tid @4 :Int32;
  tag @5 :Text;
  message @6 :Text;
}

struct UploaderState @0xde266b39b76b461e {
  immediateQueueSize @0 :UInt32;      # MB
  immediateQueueCount @1 :UInt32;
  rawQueueSize @2 :UInt32;            # MB
  rawQueueCount @3 :UInt32;
  lastTime @4 :Float32;               # s
  lastSpeed @5 :Float32;              # MB/s
  lastFilename @6 :Text;
}

struct DebugAlert @0xf585f6ba1d678656 {
  alertText1 @0 :Text;
  alertText2 @1 :Text;
}

# The driver marked this moment. Its time is all there is to say.
struct UserBookmark @0xfe346a9de48d9b50 {
}

# soundPressure (microphone before 2025), 10 Hz.
struct SoundPressure @0xdc24138990726023 {
  soundPressure @0 :Float32;          # Pa, uncalibrated
  soundPressureWeightedDb @1 :Float32;          # A-weighted
  filteredSoundPressureWeightedDb @2 :Float32;  # retired 2026
  soundPressureWeighted @3 :Float32;
}

# Sound as it is: 16-bit samples of one channel.
struct AudioData @0xa4e671db37b8ade5 {
  data @0 :Data;
  sampleRate @1 :UInt32;              # Hz
}

# One event of the touch screen, as Linux reports it.
struct Touch @0x8795cd2944faeab6 {
  sec @0 :Int64;
  usec @1 :Int64;
  type @2 :UInt8;
  code @3 :Int32;
  value @4 :Int32;
}

struct Joystick @0xe42401658e2715e2 {
  axes @0 :List(Float32);             # -1..1
  buttons @1 :List(Bool);
}

struct UIDebug @0xfe35ad896ffaeacf {
  cpuTimeMillis @0 :Float32;          # drawTimeMillis before 2026
  frameTimeMillis @1 :Float32;
}
